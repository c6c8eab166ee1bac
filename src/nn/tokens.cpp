#include "nn/tokens.h"

namespace sluice {

ggml_tensor* frame_to_tokens(GraphBuilder& g, ggml_tensor* frame) {
  ggml_context* c = g.context();
  ggml_tensor* rows = ggml_reshape_2d(c, frame, frame->ne[0] * frame->ne[1], frame->ne[2]);
  return ggml_cont(c, ggml_transpose(c, rows));
}

ggml_tensor* tokens_to_frame(GraphBuilder& g, ggml_tensor* tokens, std::int64_t width, std::int64_t height) {
  ggml_context* c = g.context();
  return ggml_reshape_4d(c, ggml_cont(c, ggml_transpose(c, tokens)), width, height, tokens->ne[0], 1);
}

}  // namespace sluice
