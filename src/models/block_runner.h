#pragma once

#include <map>
#include <set>
#include <span>
#include <vector>

#include "doctest/doctest.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "io/convert.h"
#include "models/component.h"
#include "nn/graph_builder.h"

namespace sluice::testing {

/// A tensor in host memory, f32, shape in ggml order.
struct HostTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> data;
};

/// How weights reach the graph: in the type the engine would use on a device, or everything widened to f32.
enum class WeightTypes { device, f32 };

/// Runs a model block by block on the CPU, everything allocated anew for each block: slow, simple and independent of the
/// engine. Checks on the way what the engine relies on: every node is supported, outputs are real contiguous nodes, values are
/// written once.
class BlockRunner {
 public:
  explicit BlockRunner(WeightTypes types, Variants variants = {}) : types_(types), variants_(variants) {
    ggml_backend_load_all();
    backend_.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    REQUIRE(backend_ != nullptr);
    auto* registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend_.get()));
    auto set_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads"));
    REQUIRE(static_cast<bool>(set_threads));
    // ggml's threads spin while they wait, which is dear on a busy machine.
    set_threads(backend_.get(), 1);
  }

  /// `inputs` by value id; returns every value the model made.
  std::map<std::uint32_t, HostTensor> run(const Component& component, std::map<std::uint32_t, HostTensor> state) const {
    for (std::size_t b = 0; b < component.model->blocks.size(); ++b)
      run_block(component.model->blocks[b], component.origins[b], state);
    for (const Value value : component.model->outputs) CHECK(state.contains(value.id));
    return state;
  }

 private:
  ggml_type type_of(const TensorInfo& info, WeightRole role) const {
    if (types_ == WeightTypes::f32 || role == WeightRole::vector || role == WeightRole::dense) return GGML_TYPE_F32;
    switch (info.dtype) {
      case DType::f16: return GGML_TYPE_F16;
      case DType::bf16: return role == WeightRole::matrix ? GGML_TYPE_BF16 : GGML_TYPE_F32;
      case DType::quantised: return role == WeightRole::matrix ? info.ggml : GGML_TYPE_F32;
      default: return GGML_TYPE_F32;
    }
  }

  static ggml_tensor* new_tensor(ggml_context* context, ggml_type type, const std::vector<std::int64_t>& shape) {
    return ggml_new_tensor(context, type, static_cast<int>(shape.size()), shape.data());
  }

  void run_block(const Block& block, const std::vector<WeightOrigin>& origins,
                 std::map<std::uint32_t, HostTensor>& state) const {
    CAPTURE(block.name);
    constexpr std::size_t kNodes = 2048;
    ggml_context_ptr context(
        ggml_init({kNodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(kNodes, false), nullptr, true}));
    std::vector<ggml_tensor*> weights, inputs;
    for (std::size_t i = 0; i < block.weights.size(); ++i) {
      weights.push_back(new_tensor(context.get(), type_of(origins[i].info(), block.weights[i].role), block.weights[i].shape));
    }
    for (const Value value : block.inputs) {
      REQUIRE(state.contains(value.id));
      inputs.push_back(new_tensor(context.get(), GGML_TYPE_F32, state.at(value.id).shape));
    }
    GraphBuilder builder(context.get(), variants_, weights);
    const auto outputs = block.forward(builder, inputs);
    REQUIRE(outputs.size() == block.outputs.size());
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), kNodes, false);
    for (ggml_tensor* out : outputs) ggml_build_forward_expand(graph, out);
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i)
      REQUIRE(ggml_backend_supports_op(backend_.get(), ggml_graph_node(graph, i)));

    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(context.get(), backend_.get()));
    REQUIRE(buffer != nullptr);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const TensorInfo& info = origins[i].info();
      std::vector<std::byte> raw(info.size), image(ggml_nbytes(weights[i]));
      REQUIRE(read_tensor(*origins[i].file, info, raw));
      const Status converted = convert(info, raw, info.elements(), weights[i]->type, image);
      REQUIRE_MESSAGE(converted, (converted ? "" : converted.error().message));
      ggml_backend_tensor_set(weights[i], image.data(), 0, image.size());
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      ggml_backend_tensor_set(inputs[i], state.at(block.inputs[i].id).data.data(), 0, ggml_nbytes(inputs[i]));
    }
    REQUIRE(ggml_backend_graph_compute(backend_.get(), graph) == GGML_STATUS_SUCCESS);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      ggml_tensor* out = outputs[i];
      CHECK(out->view_src == nullptr);
      CHECK(out->op != GGML_OP_NONE);
      CHECK(ggml_is_contiguous(out));
      CHECK(out->type == GGML_TYPE_F32);
      CHECK(!state.contains(block.outputs[i].id));
      HostTensor& host = state[block.outputs[i].id];
      host.shape.assign(out->ne, out->ne + 4);
      host.data.resize(static_cast<std::size_t>(ggml_nelements(out)));
      ggml_backend_tensor_get(out, host.data.data(), 0, ggml_nbytes(out));
    }
  }

  WeightTypes types_;
  Variants variants_;
  ggml_backend_ptr backend_;
};

}  // namespace sluice::testing
