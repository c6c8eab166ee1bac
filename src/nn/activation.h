#pragma once

#include "nn/graph_builder.h"

namespace sluice {

/// x · sigmoid(x), in f32.
ggml_tensor* silu(GraphBuilder& g, ggml_tensor* x);
/// x · sigmoid(1.702 x), in f32. Spelled out: ggml's own operator looks values up in a table of half precision on the CPU.
ggml_tensor* quick_gelu(GraphBuilder& g, ggml_tensor* x);
/// [2 n, T] → [n, T]: first half times gelu(second half), the error-function gelu (Shazeer, arXiv:2002.05202; "value half
/// first").
ggml_tensor* geglu(GraphBuilder& g, ggml_tensor* x);

}  // namespace sluice
