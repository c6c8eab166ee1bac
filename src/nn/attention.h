#pragma once

#include "nn/block_def.h"

namespace sluice {

/// softmax(q kᵀ / √d) v in each head: q [C, Tq], k and v [C, Tk], all f32 → [C, Tq] f32; d = C / heads, heads divides C.
/// `causal` (Tq = Tk): a token sees itself and those before it.
/// Score matrices up to Variants::score_limit are made whole; larger ones by flash attention or for a few queries at a time, so
/// that memory is bounded for any frame. Rows of a softmax are independent: a few at a time gives the bits of all at once;
/// flash attention differs in the order of its sums. Causal attention (text, which is short) and a single query are made whole
/// always.
ggml_tensor* attention(GraphBuilder& g, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, int heads, bool causal = false);

}  // namespace sluice
