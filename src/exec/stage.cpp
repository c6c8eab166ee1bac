#include "exec/stage.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/graph_cost.h"

namespace sluice {

Result<Stage> Stage::build(StageSpec spec, WeightStore& store, Device& device, const Variants& variants, Bytes chunk) {
  if (spec.lanes.empty()) return fail(Code::invalid_argument, fmt::format("stage {} has no lanes", spec.name));
  Stage stage;
  stage.spec_ = std::move(spec);
  stage.model_ = &store.model(stage.spec_.component);
  const auto layout = [&](std::size_t b) -> const BlockLayout& {
    return store.layout({stage.spec_.component, static_cast<std::uint32_t>(b)});
  };
  const std::size_t blocks = stage.blocks(), lanes = stage.spec_.lanes.size();
  StageCost& cost = stage.cost_;
  cost.lanes = static_cast<int>(lanes);
  cost.sweeps = stage.spec_.sweeps;
  cost.alignment = device.info().alignment;
  cost.chunk = chunk > 0 ? chunk : Arena::chunk_size_for(device.info());
  const auto rates = device.rates();
  cost.link_bytes_per_s = rates.link_bytes_per_s;
  cost.link_latency_s = rates.link_latency_s;
  cost.blocks.resize(blocks);
  for (std::size_t b = 0; b < blocks; ++b) {
    cost.blocks[b].weights = align_up(layout(b).size, cost.alignment);
  }
  for (std::size_t l = 0; l < lanes; ++l) {
    auto lane = build_lane(*stage.model_, stage.spec_.lanes[l], layout, variants, device);
    if (!lane) return fail_while(stage.spec_.name, std::move(lane).error());
    for (std::size_t b = 0; b < blocks; ++b) {
      const BlockGraph& g = lane->blocks[b];
      stage.workspaces_.push_back(place_workspace(g.graph, g.outputs, device.buffer_type(), cost.chunk));
      const WorkspaceLayout& workspace = stage.workspaces_.back();
      cost.blocks[b].workspace = std::max(cost.blocks[b].workspace, align_up(workspace.size, cost.alignment));
      cost.blocks[b].contiguous = std::max(cost.blocks[b].contiguous, align_up(workspace.largest, cost.alignment));
      cost.blocks[b].compute_s += graph_flops(g.graph) / rates.flops_per_s;
    }
    const int last_tick = static_cast<int>(blocks * lanes) - 1;
    for (std::uint32_t v = 0; v < lane->values.size(); ++v) {
      const ValueFacts& facts = lane->values[v];
      if (!facts.used) continue;
      const auto tick = [&](int block) { return block * static_cast<int>(lanes) + static_cast<int>(l); };
      StateCost s{.size = align_up(facts.size, cost.alignment)};
      if (facts.once_per_lane) {
        s.from = 0;
        s.to = last_tick;
      } else {
        // The host writes inputs before the sweep and reads outputs after it, for all lanes.
        s.from = facts.written_by < 0 ? 0 : tick(facts.written_by);
        s.to = facts.output ? last_tick : tick(facts.last_read_by);
      }
      cost.state.push_back(s);
      stage.state_.push_back({l, Value{v}});
    }
    stage.lanes_.push_back(std::move(*lane));
  }
  return stage;
}

Bytes Stage::lower_bound() const {
  Bytes worst = 0;
  const int lanes = cost_.lanes;
  for (std::size_t b = 0; b < blocks(); ++b) {
    for (int l = 0; l < lanes; ++l) {
      const int tick = static_cast<int>(b) * lanes + l;
      Bytes live = 0;
      for (const auto& s : cost_.state) live += s.from <= tick && tick <= s.to ? s.size : 0;
      worst =
          std::max(worst, cost_.blocks[b].weights +
                              align_up(workspaces_[static_cast<std::size_t>(l) * blocks() + b].size, cost_.alignment) + live);
    }
  }
  return worst;
}

std::vector<ggml_cgraph*> Stage::distinct_graphs() const {
  std::vector<ggml_cgraph*> graphs;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    const auto same = std::find(spec_.lanes.begin(), spec_.lanes.begin() + static_cast<std::ptrdiff_t>(l), spec_.lanes[l]);
    if (same != spec_.lanes.begin() + static_cast<std::ptrdiff_t>(l)) continue;
    for (const auto& b : lanes_[l].blocks) graphs.push_back(b.graph);
  }
  return graphs;
}

Status Stage::bind(const StagePlan& plan, std::vector<WeightPlace> places, const Arena& arena, WeightStore& store) {
  if (bound_) return fail(Code::invalid_argument, fmt::format("stage {} is bound already", spec_.name));
  plan_ = plan;
  arena_ = &arena;
  places_ = std::move(places);
  std::vector<std::vector<Address>> state_address(lanes_.size());
  for (auto& a : state_address) a.assign(model_->values, 0);
  for (std::size_t i = 0; i < state_.size(); ++i) state_address[state_[i].lane][state_[i].value.id] = plan_.state[i];

  std::size_t own = blocks();
  for (const auto& lane : lanes_) own += lane.values.size();
  SLUICE_ASSIGN(own_context_, GraphContext::open(own * ggml_tensor_overhead()));

  images_.assign(blocks(), nullptr);
  for (std::size_t b = 0; b < blocks(); ++b) {
    const auto kind = places_[b].kind;
    if (kind == WeightPlace::Kind::none || kind == WeightPlace::Kind::mapped) continue;
    const auto& layout = store.layout({spec_.component, static_cast<std::uint32_t>(b)});
    images_[b] = ggml_new_tensor_1d(own_context_.get(), GGML_TYPE_I8, static_cast<std::int64_t>(layout.size));
    SLUICE_TRY(arena.bind(images_[b], places_[b].address));
  }
  dead_.resize(lanes_.size() * blocks());
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    LaneGraph& lane = lanes_[l];
    values_.emplace_back(lane.values.size(), nullptr);
    for (std::uint32_t v = 0; v < lane.values.size(); ++v) {
      const ValueFacts& facts = lane.values[v];
      if (!facts.used) continue;
      values_[l][v] = ggml_new_tensor(own_context_.get(), facts.type, 4, facts.shape.data());
      SLUICE_TRY(arena.bind(values_[l][v], state_address[l][v]));
      if (!facts.once_per_lane && !facts.output)
        dead_[l * blocks() + static_cast<std::size_t>(facts.last_read_by)].push_back({state_address[l][v], facts.size});
    }
    for (std::size_t b = 0; b < blocks(); ++b) {
      BlockGraph& g = lane.blocks[b];
      const Block& block = model_->blocks[b];
      const BlockId id{spec_.component, static_cast<std::uint32_t>(b)};
      const auto bind_all = [&]() -> Status {
        for (std::size_t w = 0; w < g.weights.size(); ++w) {
          if (places_[b].kind == WeightPlace::Kind::mapped) {
            SLUICE_ASSIGN(const bool done, store.bind_mapped(id, w, g.weights[w]));
            if (!done) return fail(Code::invalid_argument, "a weight planned to be used in place cannot be");
          } else {
            SLUICE_TRY(arena.bind(g.weights[w], places_[b].address + store.layout(id).tensors[w].offset));
          }
        }
        for (std::size_t i = 0; i < g.inputs.size(); ++i)
          SLUICE_TRY(arena.bind(g.inputs[i], state_address[l][block.inputs[i].id]));
        for (std::size_t i = 0; i < g.outputs.size(); ++i)
          SLUICE_TRY(arena.bind(g.outputs[i], state_address[l][block.outputs[i].id]));
        for (const auto& node : workspaces_[l * blocks() + b].nodes)
          SLUICE_TRY(arena.bind(node.tensor, plan_.workspace[b] + node.offset));
        for (int i = 0; i < ggml_graph_n_nodes(g.graph); ++i) {
          ggml_tensor* node = ggml_graph_node(g.graph, i);
          for (ggml_tensor* t : node->src) {
            if (t && t->view_src && !t->buffer && ggml_backend_view_init(t) != GGML_STATUS_SUCCESS)
              return fail(Code::device_failed, "a view was refused");
          }
          if (node->view_src && !node->buffer && ggml_backend_view_init(node) != GGML_STATUS_SUCCESS)
            return fail(Code::device_failed, "a view was refused");
          if (!node->buffer) return fail(Code::invalid_argument, fmt::format("node {} has no place", ggml_op_desc(node)));
        }
        return {};
      };
      if (auto done = bind_all(); !done)
        return fail_while(fmt::format("{}, block {}", spec_.name, block.name), std::move(done).error());
    }
  }
  bound_ = true;
  return {};
}

}  // namespace sluice
