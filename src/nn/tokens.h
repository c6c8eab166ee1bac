#pragma once

#include "nn/graph_builder.h"

namespace sluice {

/// A frame's pixels as tokens: [W, H, C, 1] → [C, W·H], a contiguous copy.
ggml_tensor* frame_to_tokens(GraphBuilder& g, ggml_tensor* frame);
/// The way back: [C, W·H] → [W, H, C, 1], a contiguous copy seen as a frame (a view: not fit to cross a block's boundary).
ggml_tensor* tokens_to_frame(GraphBuilder& g, ggml_tensor* tokens, std::int64_t width, std::int64_t height);

}  // namespace sluice
