#pragma once

#include <string>

#include "nn/block_def.h"

namespace sluice {

/// The transformer of latent diffusion's U-Net (Rombach et al., arXiv:2112.10752; CompVis attention.py, SpatialTransformer).
struct SpatialTransformerSpec {
  std::string name;           ///< e.g. "input_blocks.1.1"
  std::int64_t channels = 0;  ///< of the frame and of the tokens
  std::int64_t context = 0;   ///< of the text states
  int heads = 8;              ///< divides `channels`
  int depth = 1;
};

/// Appends three blocks per layer: attn1 (the first with norm and proj_in), attn2, ff (the last with proj_out and the
/// residual). `frame` [W, H, channels, 1] f32 → the returned frame of the same shape; `context` [context, tokens] f32. proj_in
/// and proj_out are matrices [channels, channels]: a file may store them as 1x1 kernels. Layer norms: eps 1e-5; group norm:
/// 1e-6.
Value append_spatial_transformer(Model& model, const SpatialTransformerSpec& spec, Value frame, Value context);

}  // namespace sluice
