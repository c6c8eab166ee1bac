#pragma once

#include <cstdint>
#include <vector>

#include "device/arena.h"
#include "device/device.h"

namespace sluice {

/// A graph for tests: weight [k, m] × input [k, n] → f32 [m, n], with small whole numbers, so that the product is exact in f32.
class TestProduct {
 public:
  TestProduct(std::int64_t k, std::int64_t m, std::int64_t n, ggml_type type = GGML_TYPE_F32);
  ggml_tensor* weight() const { return weight_; }
  ggml_tensor* input() const { return input_; }
  ggml_tensor* output() const { return output_; }
  ggml_cgraph* graph() const { return graph_; }
  /// Arena bytes that `bind` uses.
  Bytes bytes(const Device& device) const;
  /// Binds all tensors one after another from `at` and uploads weight and input (f32 weights only; others stay as they are).
  /// Returns the end.
  Address bind(Device& device, const Arena& arena, Address at = 0);
  std::vector<float> result(Device& device) const;
  std::vector<float> expected() const;

 private:
  ggml_context_ptr context_;
  ggml_tensor *weight_, *input_, *output_;
  ggml_cgraph* graph_;
};

/// `length` products of one n × n f32 weight with what came before, each into one of two places in turn.
class TestChain {
 public:
  TestChain(std::int64_t n, int length);
  ggml_tensor* input() const { return input_; }
  ggml_cgraph* graph() const { return graph_; }
  Bytes bytes(const Device& device) const;
  /// Binds all and uploads zeros.
  void bind(Device& device, const Arena& arena);

 private:
  ggml_context_ptr context_;
  ggml_tensor *weight_, *input_;
  std::vector<ggml_tensor*> products_;
  ggml_cgraph* graph_;
};

}  // namespace sluice
