#include <algorithm>
#include <chrono>
#include <map>

#include "bench/core.h"
#include "exec/lane_graph.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "models/checkpoint.h"
#include "nn/graph_builder.h"
#include "pipeline/loaded_model.h"

namespace sluice::bench {
namespace {

/// The network as one graph: what sluice gives up by going block by block.
struct WholeGraph {
  ggml_context_ptr weights_context, graph_context;
  ggml_backend_buffer_ptr weights;
  ggml_gallocr_ptr allocator;
  ggml_backend_ptr backend;
  ggml_cgraph* graph = nullptr;
  std::vector<ggml_tensor*> inputs;
};

ggml_context_ptr context_for(std::size_t tensors) {
  return ggml_context_ptr(
      ggml_init({tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(tensors, false), nullptr, true}));
}

Result<WholeGraph> build(const Model& model, WeightStore& store, ComponentId id, const std::map<std::uint32_t, Shape>& shapes) {
  WholeGraph whole;
  whole.backend.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
  if (!whole.backend) return fail(Code::device_failed, "ggml has no CPU backend");
  auto* reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(whole.backend.get()));
  using SetThreads = void (*)(ggml_backend_t, int);
  if (auto* set = reinterpret_cast<SetThreads>(ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads")))
    set(whole.backend.get(), 1);

  constexpr std::size_t kTensors = 1 << 14;
  whole.weights_context = context_for(kTensors);
  whole.graph_context = context_for(kTensors);
  std::vector<std::vector<ggml_tensor*>> weights(model.blocks.size());
  for (std::uint32_t b = 0; b < model.blocks.size(); ++b) {
    for (const auto& t : store.layout({id, b}).tensors) {
      weights[b].push_back(
          ggml_new_tensor(whole.weights_context.get(), t.type, static_cast<int>(t.shape.size()), t.shape.data()));
    }
  }
  whole.weights.reset(ggml_backend_alloc_ctx_tensors(whole.weights_context.get(), whole.backend.get()));
  if (!whole.weights) return fail(Code::device_oom, "the whole model does not fit");
  for (std::uint32_t b = 0; b < model.blocks.size(); ++b) {
    const auto& layout = store.layout({id, b});
    std::vector<std::byte> staging(layout.size);
    SLUICE_ASSIGN(const auto image, store.fetch({id, b}, staging, CancelToken{}));
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
      const auto& t = layout.tensors[i];
      ggml_backend_tensor_set(weights[b][i], image.data() + t.offset, 0, t.size);
    }
  }

  std::map<std::uint32_t, ggml_tensor*> values;
  for (const auto& input : model.inputs) {
    auto* tensor = ggml_new_tensor(whole.graph_context.get(), input.type, 4, shapes.at(input.value.id).data());
    ggml_set_input(tensor);
    values[input.value.id] = tensor;
    whole.inputs.push_back(tensor);
  }
  const Variants variants;
  whole.graph = ggml_new_graph_custom(whole.graph_context.get(), kTensors, false);
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    const auto& block = model.blocks[b];
    GraphBuilder builder(whole.graph_context.get(), variants, weights[b]);
    std::vector<ggml_tensor*> in;
    for (const auto value : block.inputs) in.push_back(values.at(value.id));
    const auto out = block.forward(builder, in);
    for (std::size_t i = 0; i < out.size(); ++i) values[block.outputs[i].id] = out[i];
  }
  for (const auto value : model.outputs) {
    ggml_set_output(values.at(value.id));
    ggml_build_forward_expand(whole.graph, values.at(value.id));
  }
  whole.allocator.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(whole.backend.get())));
  if (!ggml_gallocr_alloc_graph(whole.allocator.get(), whole.graph))
    return fail(Code::device_oom, "the whole graph does not fit");
  return whole;
}

}  // namespace

Result<double> whole_graph_step_s(const std::string& path, int passes) {
  SLUICE_ASSIGN(auto device, open_device("cpu:threads=1"));
  std::unique_ptr<LoadedModel> loaded;  // outlives the store
  WeightStore store(*device, WeightStore::Options{});
  SLUICE_ASSIGN(loaded, load_model(path, *system_files(), store, {}));
  const auto& part = loaded->parts.denoiser;
  const std::int64_t side = 64 / loaded->rule.factor;
  const std::map<std::uint32_t, Shape> shapes{{part.values.x.id, {side, side, part.config.in_channels, 1}},
                                              {part.values.t_emb.id, {part.config.model_channels, 1, 1, 1}},
                                              {part.values.context.id, {part.config.context, 77, 1, 1}}};
  SLUICE_ASSIGN(auto whole, build(store.model(loaded->denoiser), store, loaded->denoiser, shapes));
  std::vector<double> times;
  for (int i = 0; i <= passes; ++i) {
    for (auto* input : whole.inputs) {
      const std::vector<float> data(static_cast<std::size_t>(ggml_nelements(input)), 0.5f);
      ggml_backend_tensor_set(input, data.data(), 0, ggml_nbytes(input));
    }
    const auto start = std::chrono::steady_clock::now();
    if (ggml_backend_graph_compute(whole.backend.get(), whole.graph) != GGML_STATUS_SUCCESS)
      return fail(Code::device_failed, "the whole graph failed");
    if (i > 0) times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

}  // namespace sluice::bench
