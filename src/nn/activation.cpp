#include "nn/activation.h"

namespace sluice {

ggml_tensor* silu(GraphBuilder& g, ggml_tensor* x) { return ggml_silu(g.context(), x); }

ggml_tensor* quick_gelu(GraphBuilder& g, ggml_tensor* x) {
  ggml_context* c = g.context();
  return ggml_mul(c, x, ggml_sigmoid(c, ggml_scale(c, x, 1.702f)));
}

ggml_tensor* geglu(GraphBuilder& g, ggml_tensor* x) { return ggml_geglu_erf_swapped(g.context(), x); }

}  // namespace sluice
