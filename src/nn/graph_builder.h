#pragma once

#include <utility>
#include <vector>

#include "ggml.h"
#include "nn/variants.h"

namespace sluice {

/// A block's weight by its place in Block::weights.
struct WeightRef {
  std::uint32_t index = UINT32_MAX;
  explicit operator bool() const { return index != UINT32_MAX; }
};

/// What a block's `forward` sees: a context without memory to add nodes to, its weights as tensors, and the device's operator
/// variants. Borrowed: valid during one call of `forward`.
class GraphBuilder {
 public:
  GraphBuilder(ggml_context* context, const Variants& variants, std::vector<ggml_tensor*> weights)
      : context_(context), variants_(variants), weights_(std::move(weights)) {}
  ggml_context* context() const { return context_; }
  const Variants& variants() const { return variants_; }
  /// Non-view tensor of the declared shape, in the type it has on the device.
  ggml_tensor* weight(WeightRef ref) const { return weights_.at(ref.index); }

 private:
  ggml_context* context_;
  const Variants& variants_;
  std::vector<ggml_tensor*> weights_;
};

}  // namespace sluice
