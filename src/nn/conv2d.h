#pragma once

#include <string>

#include "nn/block_def.h"

namespace sluice {

/// 2-D convolution of one frame: [W, H, in, 1] f32 → [W', H', out, 1] f32, zero padding on all four sides.
/// Weights `name.weight` [k, k, in, out] (f16 or f32) and `name.bias` [out].
/// The frame is unfolded in the kernel's type (so with f16 kernels activations are rounded to f16) and multiplied; where the
/// unfolded frame would exceed Variants::im2col_limit, ggml's direct convolution does the same piece by piece in its own work
/// memory.
struct Conv2d {
  WeightRef w, b;
  int stride = 1, padding = 0;
  static Conv2d declare(BlockDef& def, const std::string& name, std::int64_t in, std::int64_t out, int kernel, int stride,
                        int padding);
  /// The usual case: stride 1, frame size kept.
  static Conv2d declare(BlockDef& def, const std::string& name, std::int64_t in, std::int64_t out, int kernel) {
    return declare(def, name, in, out, kernel, 1, kernel / 2);
  }
  ggml_tensor* operator()(GraphBuilder& g, ggml_tensor* x) const;
};

}  // namespace sluice
