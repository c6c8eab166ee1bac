#pragma once

#include <string>

#include "nn/block_def.h"

namespace sluice {

/// y = W x + b over tokens: [in, T] f32 → [out, T] f32. Weights `name.weight` [in, out] (any type ggml multiplies with) and
/// `name.bias` [out]. With f16 weights ggml's CPU kernels round x to f16 before the product; sums are f32.
struct Linear {
  WeightRef w, b;
  static Linear declare(BlockDef& def, const std::string& name, std::int64_t in, std::int64_t out, bool bias = true);
  ggml_tensor* operator()(GraphBuilder& g, ggml_tensor* x) const;
};

}  // namespace sluice
