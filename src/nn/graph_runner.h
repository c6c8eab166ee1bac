#pragma once

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "doctest/doctest.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "nn/block_def.h"

namespace sluice::testing {

/// A tensor in host memory, shape in ggml order.
struct Array {
  std::vector<std::int64_t> shape;
  std::vector<float> data;
  std::int64_t at(std::size_t axis) const { return axis < shape.size() ? shape[axis] : 1; }
};

inline Array random_array(std::vector<std::int64_t> shape, unsigned seed, float scale = 1) {
  std::size_t count = 1;
  for (const auto n : shape) count *= static_cast<std::size_t>(n);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Array array{std::move(shape), std::vector<float>(count)};
  for (float& x : array.data) x = scale * normal(random);
  return array;
}

/// rms(got - want) / rms(want), NaN if anything is.
inline double rel_rms(const std::vector<float>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  double error = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(error / size);
}

/// Runs one block on the CPU. `weights` and `inputs` are given as f32 and stored as asked.
struct GraphRunner {
  Variants variants;
  int threads = 1;
  ggml_type kernel_type = GGML_TYPE_F32;  ///< of kernels and matrices

  Array run(const Block& block, const std::vector<Array>& weights, const std::vector<Array>& inputs) const {
    ggml_backend_load_all();
    ggml_backend_ptr backend(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    REQUIRE(backend != nullptr);
    auto* registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend.get()));
    reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads"))(
        backend.get(), threads);
    constexpr std::size_t kNodes = 4096;
    ggml_context_ptr context(
        ggml_init({kNodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(kNodes, false), nullptr, true}));
    const auto make = [&](ggml_type type, const std::vector<std::int64_t>& shape) {
      return ggml_new_tensor(context.get(), type, static_cast<int>(shape.size()), shape.data());
    };
    std::vector<ggml_tensor*> w, in;
    REQUIRE(weights.size() == block.weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const bool vector = block.weights[i].role == WeightRole::vector || block.weights[i].role == WeightRole::dense;
      w.push_back(make(vector ? GGML_TYPE_F32 : kernel_type, block.weights[i].shape));
    }
    for (const auto& input : inputs) in.push_back(make(GGML_TYPE_F32, input.shape));
    GraphBuilder builder(context.get(), variants, w);
    ggml_tensor* out = block.forward(builder, in).at(0);
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), kNodes, false);
    ggml_build_forward_expand(graph, out);
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(context.get(), backend.get()));
    REQUIRE(buffer != nullptr);
    for (std::size_t i = 0; i < w.size(); ++i) set(w[i], weights[i].data);
    for (std::size_t i = 0; i < in.size(); ++i) set(in[i], inputs[i].data);
    REQUIRE(ggml_backend_graph_compute(backend.get(), graph) == GGML_STATUS_SUCCESS);
    Array result{{out->ne, out->ne + 4}, std::vector<float>(static_cast<std::size_t>(ggml_nelements(out)))};
    REQUIRE(ggml_is_contiguous(out));
    ggml_backend_tensor_get(out, result.data.data(), 0, ggml_nbytes(out));
    return result;
  }

  /// A block without weights, of one function.
  Array apply(const std::function<ggml_tensor*(GraphBuilder&, const Tensors&)>& function,
              const std::vector<Array>& inputs) const {
    Model model;
    BlockDef def(model, "test");
    def.finish([&](GraphBuilder& g, const Tensors& in) -> Tensors { return {function(g, in)}; });
    return run(model.blocks[0], {}, inputs);
  }

 private:
  static void set(ggml_tensor* tensor, const std::vector<float>& data) {
    REQUIRE(static_cast<std::size_t>(ggml_nelements(tensor)) == data.size());
    if (tensor->type == GGML_TYPE_F16) {
      std::vector<ggml_fp16_t> half(data.size());
      ggml_fp32_to_fp16_row(data.data(), half.data(), static_cast<std::int64_t>(data.size()));
      ggml_backend_tensor_set(tensor, half.data(), 0, ggml_nbytes(tensor));
    } else {
      ggml_backend_tensor_set(tensor, data.data(), 0, ggml_nbytes(tensor));
    }
  }
};

}  // namespace sluice::testing
