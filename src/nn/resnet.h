#pragma once

#include <string>

#include "nn/conv2d.h"
#include "nn/linear.h"
#include "nn/norm.h"

namespace sluice {

/// How a family of checkpoints names the parts of a residual block, and its group norm's epsilon.
struct ResnetNames {
  std::string norm1, conv1, embedding, norm2, conv2, shortcut;
  float eps = 1e-5f;
};

/// x' + conv2(silu(norm2(conv1(silu(norm1(x))) + embed(e)))), x' = x or a 1x1 convolution of it where the width changes.
/// [W, H, in, 1] f32 → [W, H, out, 1] f32. `e` [embedding, 1] f32 is activated already; null where `embedding` is 0.
struct Resnet {
  GroupNorm norm1, norm2;
  Conv2d conv1, conv2, shortcut;
  Linear embed;
  static Resnet declare(BlockDef& def, const std::string& prefix, const ResnetNames& names, std::int64_t in, std::int64_t out,
                        std::int64_t embedding);
  ggml_tensor* operator()(GraphBuilder& g, ggml_tensor* x, ggml_tensor* e) const;
};

}  // namespace sluice
