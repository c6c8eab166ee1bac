#include "exec/lane_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "base/pages.h"
#include "nn/graph_builder.h"

namespace sluice {
namespace {

// The first pass counts into a context of this many tensors. Its pages are mapped once for a lane: untouched ones cost nothing,
// and none come from the heap, where each small context that stays would leave the next large one no room but at the end.
constexpr std::size_t kScratchTensors = 16384;

struct Built {
  BlockGraph graph;
  std::size_t used = 0;  // bytes of context that the tensors took
  int nodes = 0;
};

Result<Built> build_once(const Block& block, const std::vector<ValueFacts>& values, const BlockLayout& layout,
                         const Variants& variants, GraphContext memory, std::size_t graph_size) {
  Built built;
  built.graph.context = std::move(memory);
  ggml_context* context = built.graph.context.get();
  auto& g = built.graph;
  for (std::size_t i = 0; i < block.weights.size(); ++i) {
    const auto& t = layout.tensors[i];
    Shape ne{1, 1, 1, 1};
    std::copy(t.shape.begin(), t.shape.end(), ne.begin());
    ggml_tensor* tensor =
        ggml_new_tensor(context, t.type, static_cast<int>(std::max<std::size_t>(t.shape.size(), 1)), ne.data());
    ggml_set_name(tensor, block.weights[i].name.c_str());
    g.weights.push_back(tensor);
  }
  for (const Value v : block.inputs) {
    const auto& facts = values[v.id];
    g.inputs.push_back(ggml_new_tensor(context, facts.type, 4, facts.shape.data()));
  }
  GraphBuilder builder(context, variants, g.weights);
  g.outputs = block.forward(builder, g.inputs);
  g.graph = ggml_new_graph_custom(context, graph_size, /*grads=*/false);
  for (ggml_tensor* output : g.outputs) ggml_build_forward_expand(g.graph, output);
  built.used = ggml_used_mem(context);
  built.nodes = ggml_graph_n_nodes(g.graph);
  return built;
}

/// What the device cannot run of it, in words; empty: nothing.
Result<std::string> check_block(const Block& block, const BlockGraph& g, const BlockLayout& layout, const Device& device) {
  std::string unsupported;
  // The graph is built again to be kept: this one only has to look as if those weights were there.
  for (std::size_t w = 0; w < g.weights.size(); ++w)
    if (layout.tensors[w].apart) g.weights[w]->buffer = layout.apart_in.get();
  const auto refuse = [&](const char* what, const ggml_tensor* t) {
    return fail(Code::invalid_argument,
                fmt::format("block {}: {} ({} {})", block.name, what, ggml_op_desc(t), ggml_get_name(t)));
  };
  if (g.outputs.size() != block.outputs.size())
    return fail(Code::invalid_argument,
                fmt::format("block {} declares {} outputs and makes {}", block.name, block.outputs.size(), g.outputs.size()));
  std::unordered_set<const ggml_tensor*> known(g.weights.begin(), g.weights.end());
  known.insert(g.inputs.begin(), g.inputs.end());
  for (int i = 0; i < ggml_graph_n_nodes(g.graph); ++i) {
    ggml_tensor* node = ggml_graph_node(g.graph, i);
    for (const ggml_tensor* src : node->src) {
      if (!src) continue;
      const ggml_tensor* root = src->view_src ? src->view_src : src;
      if (!known.count(src) && !known.count(root)) return refuse("a leaf is neither weight nor input of", node);
    }
    if (unsupported.empty() && !device.supports(node))
      unsupported = fmt::format("{} cannot run {} on {}", device.info().name, ggml_op_desc(node),
                                ggml_type_name(node->src[0] ? node->src[0]->type : node->type));
    known.insert(node);
  }
  std::unordered_set<const ggml_tensor*> seen;
  for (const ggml_tensor* output : g.outputs) {
    if (output->view_src || output->op == GGML_OP_NONE) return refuse("an output is a view or an input", output);
    if (!ggml_is_contiguous(output)) return refuse("an output is not contiguous", output);
    if (!seen.insert(output).second) return refuse("an output is returned twice", output);
  }
  return unsupported;
}

}  // namespace

Result<LaneGraph> build_lane(const Model& model, const LaneShape& shape,
                             const std::function<const BlockLayout&(std::size_t)>& layout,
                             const std::function<const Site&(std::size_t)>& site_of) {
  if (shape.inputs.size() != model.inputs.size())
    return fail(Code::invalid_argument,
                fmt::format("{} has {} inputs, the lane gives {}", model.name, model.inputs.size(), shape.inputs.size()));
  LaneGraph lane;
  lane.values.resize(model.values);
  std::vector<bool> written(model.values, false);
  for (std::size_t i = 0; i < model.inputs.size(); ++i) {
    auto& facts = lane.values[model.inputs[i].value.id];
    facts.shape = shape.inputs[i];
    facts.type = model.inputs[i].type;
    facts.once_per_lane = model.inputs[i].refresh == Refresh::once_per_lane;
    written[model.inputs[i].value.id] = true;
  }
  const auto scratch =
      Pages::map(kScratchTensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(kScratchTensors, false));
  if (!scratch)
    return fail(Code::device_oom, fmt::format("no host memory for the graphs of {}: {}", model.name, scratch.error().message));
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    const Block& block = model.blocks[b];
    const Site& site = site_of(b);
    const ggml_backend_buffer_type_t buffer_type = site.device->buffer_type();
    for (const Value v : block.inputs) {
      if (!written[v.id]) return fail(Code::invalid_argument, fmt::format("block {} reads a value nobody wrote", block.name));
      lane.values[v.id].last_read_by = static_cast<int>(b);
      lane.values[v.id].used = true;
    }
    std::size_t context_bytes = 0, graph_size = 0;
    {
      SLUICE_ASSIGN(GraphContext counting, GraphContext::open_in(scratch->data(), scratch->size()));
      SLUICE_ASSIGN(const Built counted,
                    build_once(block, lane.values, layout(b), *site.variants, std::move(counting), kScratchTensors));
      SLUICE_ASSIGN(auto unsupported, check_block(block, counted.graph, layout(b), *site.device));
      lane.unsupported.push_back(std::move(unsupported));
      // Leaves (weights, inputs) and view sources enter the graph's tables beside the nodes.
      graph_size = static_cast<std::size_t>(counted.nodes) + block.weights.size() + block.inputs.size() + 8;
      context_bytes = counted.used - ggml_graph_overhead_custom(kScratchTensors, false) +
                      ggml_graph_overhead_custom(graph_size, false) + 1024;
    }
    SLUICE_ASSIGN(GraphContext kept, GraphContext::open(context_bytes));
    SLUICE_ASSIGN(Built built, build_once(block, lane.values, layout(b), *site.variants, std::move(kept), graph_size));
    for (std::size_t i = 0; i < block.outputs.size(); ++i) {
      auto& facts = lane.values[block.outputs[i].id];
      const ggml_tensor* t = built.graph.outputs[i];
      if (written[block.outputs[i].id])
        return fail(Code::invalid_argument, fmt::format("block {} writes a value twice", block.name));
      written[block.outputs[i].id] = true;
      std::copy(std::begin(t->ne), std::end(t->ne), facts.shape.begin());
      facts.type = t->type;
      facts.written_by = static_cast<int>(b);
      facts.last_read_by = static_cast<int>(b);
      facts.size = ggml_backend_buft_get_alloc_size(buffer_type, t);
      facts.used = true;
    }
    for (std::size_t i = 0; i < block.inputs.size(); ++i) {
      auto& facts = lane.values[block.inputs[i].id];
      facts.size = std::max<Bytes>(facts.size, ggml_backend_buft_get_alloc_size(buffer_type, built.graph.inputs[i]));
    }
    lane.blocks.push_back(std::move(built.graph));
  }
  for (const Value v : model.outputs) {
    if (!written[v.id]) return fail(Code::invalid_argument, fmt::format("{}: an output is never written", model.name));
    lane.values[v.id].last_read_by = static_cast<int>(model.blocks.size()) - 1;
    lane.values[v.id].output = true;
  }
  return lane;
}

}  // namespace sluice
