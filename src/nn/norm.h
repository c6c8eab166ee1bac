#pragma once

#include <string>

#include "nn/block_def.h"

namespace sluice {

/// Layer norm over the features of each token, with scale and bias: [C, T] f32 → [C, T] f32.
struct LayerNorm {
  WeightRef w, b;
  float eps = 1e-5f;
  static LayerNorm declare(BlockDef& def, const std::string& name, std::int64_t channels, float eps = 1e-5f);
  ggml_tensor* operator()(GraphBuilder& g, ggml_tensor* x) const;
};

/// Group norm over whole frames, with scale and bias per channel: [W, H, C, 1] f32 → [W, H, C, 1] f32. `groups` divides
/// `channels`.
struct GroupNorm {
  WeightRef w, b;
  int groups = 32;
  float eps = 1e-5f;
  static GroupNorm declare(BlockDef& def, const std::string& name, std::int64_t channels, float eps, int groups = 32);
  ggml_tensor* operator()(GraphBuilder& g, ggml_tensor* x) const;
};

}  // namespace sluice
