#pragma once

#include <string>

#include "nn/conv2d.h"

namespace sluice {

/// Nearest-neighbour doubling and a 3x3 convolution (`name`): [W, H, C, 1] → [2W, 2H, C, 1].
struct Upsample {
  Conv2d conv;
  static Upsample declare(BlockDef& def, const std::string& name, std::int64_t channels);
  ggml_tensor* operator()(GraphBuilder& g, ggml_tensor* x) const;
};

/// 3x3 convolution (`name`) with stride 2. Symmetric padding (U-Net): [W, H, C, 1] → [⌈W/2⌉, ⌈H/2⌉, C, 1].
/// Right and bottom padding by one (autoencoder): [W, H, C, 1] → [⌊W/2⌋, ⌊H/2⌋, C, 1].
struct Downsample {
  Conv2d conv;
  bool pad_right_bottom = false;
  static Downsample declare(BlockDef& def, const std::string& name, std::int64_t channels, bool pad_right_bottom);
  ggml_tensor* operator()(GraphBuilder& g, ggml_tensor* x) const;
};

}  // namespace sluice
