#pragma once

#include "nn/block_def.h"

namespace sluice {

/// softmax(q kᵀ / √d) v in each head: q [C, Tq], k and v [C, Tk], all f32 → [C, Tq] f32; d = C / heads, heads divides C.
/// `causal` (Tq = Tk): a token sees itself and those before it.
/// Score matrices of all heads up to Variants::score_limit are one piece; larger ones are made for as many queries at a time as
/// the limit allows (at least one), so memory is bounded for any frame. Rows of a softmax are independent: the mathematics is the same.
ggml_tensor* attention(GraphBuilder& g, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, int heads, bool causal = false);

}  // namespace sluice
