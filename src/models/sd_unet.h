#pragma once

#include <vector>

#include "models/names.h"
#include "nn/model.h"

namespace sluice {

/// One entry of input_blocks or output_blocks, as the tensors' names and shapes say.
struct UnetStep {
  std::int64_t channels = 0;  ///< that leave it
  int depth = 0;              ///< transformer layers after the residual block; 0: none
  bool resnet = true;         ///< false: convolution in (step 0) or downsampling
  bool upsample = false;
};

/// The U-Net of Stable Diffusion 1.x under its original names (Rombach et al., arXiv:2112.10752; CompVis openaimodel.py).
/// Everything but the number of heads is read off the tensors.
struct SdUnetConfig {
  std::int64_t in_channels = 4, out_channels = 4, model_channels = 320, embedding = 1280, context = 768;
  int heads = 8;  ///< at every level
  int middle_depth = 1;
  std::vector<UnetStep> input, output;
  /// Width and height of a latent must be multiples of this: 2 to the number of downsamplings.
  std::int64_t latent_multiple() const;
};

/// The model and its handles.
struct SdUnet {
  Model model;
  Value x;      ///< input [W, H, in_channels, 1] f32, every sweep: the scaled noisy latent; W, H multiples of latent_multiple()
  Value t_emb;  ///< input [model_channels, 1] f32, every sweep: sampling's timestep_embedding()
  Value context;  ///< input [context, tokens] f32, once per lane
  Value eps;      ///< output [W, H, out_channels, 1] f32
};

/// Errors: not_found, corrupt, unsupported (a structure that is no such U-Net).
Result<SdUnetConfig> read_sd_unet_config(const Names& names);

/// Blocks: time embedding, convolution in, each residual block, each transformer layer as three (attn1, attn2, ff), resampling,
/// out. What crosses: the frame, the skips until their use, the activated time embedding and, inside a transformer, its input
/// frame.
SdUnet sd_unet(const SdUnetConfig& config);

}  // namespace sluice
