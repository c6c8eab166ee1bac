#include "exec/stage.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/graph_cost.h"
#include "exec/bound_nodes.h"

namespace sluice {

Result<Stage> Stage::build(StageSpec spec, WeightStore& store, std::span<const Site> sites) {
  if (spec.lanes.empty()) return fail(Code::invalid_argument, fmt::format("stage {} has no lanes", spec.name));
  Stage stage;
  stage.spec_ = std::move(spec);
  stage.model_ = &store.model(stage.spec_.component);
  stage.divide(store);
  const auto layout = [&](std::size_t b) -> const BlockLayout& {
    return store.layout({stage.spec_.component, static_cast<std::uint32_t>(b)});
  };
  const auto site_of = [&](std::size_t b) -> const Site& { return sites[stage.device_of(b)]; };
  const std::size_t blocks = stage.blocks(), lanes = stage.spec_.lanes.size();
  for (Section& section : stage.sections_) {
    const Device& device = *sites[section.device].device;
    StageCost& cost = section.cost;
    cost.lanes = static_cast<int>(lanes);
    cost.sweeps = stage.spec_.sweeps;
    cost.alignment = device.info().alignment;
    cost.chunk = sites[section.device].chunk > 0 ? sites[section.device].chunk : Arena::chunk_size_for(device.info());
    const auto rates = device.rates();
    cost.link_bytes_per_s = rates.link_bytes_per_s;
    cost.link_latency_s = rates.link_latency_s;
    cost.blocks.resize(blocks);
  }
  std::vector<double> compute_s(blocks, 0);
  for (std::size_t l = 0; l < lanes; ++l) {
    auto lane = build_lane(*stage.model_, stage.spec_.lanes[l], layout, site_of);
    if (!lane) return fail_while(stage.spec_.name, std::move(lane).error());
    for (std::size_t b = 0; b < blocks; ++b) {
      if (!lane->unsupported[b].empty())
        return fail(Code::unsupported,
                    fmt::format("{}, block {}: {}", stage.spec_.name, stage.model_->blocks[b].name, lane->unsupported[b]));
      const Device& device = *site_of(b).device;
      const BlockGraph& g = lane->blocks[b];
      StageCost& cost = stage.sections_[stage.section_of_[b]].cost;
      BlockCost& block = cost.blocks[b];
      block.weights = align_up(layout(b).size, cost.alignment);
      stage.workspaces_.push_back(place_workspace(g.graph, g.outputs, device.buffer_type(), cost.chunk, cost.alignment));
      const WorkspaceLayout& workspace = stage.workspaces_.back();
      block.workspace = std::max(block.workspace, align_up(workspace.size, cost.alignment));
      block.contiguous = std::max(block.contiguous, align_up(workspace.largest, cost.alignment));
      compute_s[b] += graph_flops(g.graph) / device.rates().flops_per_s;
      for (const Arrival& arrival : stage.arrivals_[b]) {
        const double bytes = static_cast<double>(lane->values[arrival.value.id].size);
        for (const std::size_t s : {arrival.from, arrival.to}) {
          const StageCost& side = stage.sections_[s].cost;
          compute_s[b] += bytes / side.link_bytes_per_s + side.link_latency_s;
        }
      }
    }
    stage.lanes_.push_back(std::move(*lane));
    stage.add_state(l);
  }
  for (Section& section : stage.sections_)
    for (std::size_t b = 0; b < blocks; ++b) section.cost.blocks[b].compute_s = compute_s[b];
  return stage;
}

void Stage::divide(const WeightStore& store) {
  for (std::uint32_t b = 0; b < blocks(); ++b) {
    const std::size_t device = store.device_of(BlockId{spec_.component, b});
    auto section = std::find_if(sections_.begin(), sections_.end(), [&](const Section& s) { return s.device == device; });
    if (section == sections_.end()) section = sections_.insert(section, Section{device, {}});
    section_of_.push_back(static_cast<std::size_t>(section - sections_.begin()));
  }
  state_.resize(sections_.size());
  find_arrivals();
}

void Stage::find_arrivals() {
  home_.assign(model_->values, SIZE_MAX);
  for (std::size_t b = 0; b < blocks(); ++b)
    for (const Value v : model_->blocks[b].outputs) home_[v.id] = section_of_[b];
  arrivals_.resize(blocks());
  std::vector<std::vector<bool>> there(sections_.size(), std::vector<bool>(model_->values, false));
  for (std::size_t b = 0; b < blocks(); ++b) {
    const std::size_t here = section_of_[b];
    for (const Value v : model_->blocks[b].inputs) {
      // The host writes its inputs on every device that reads them.
      if (home_[v.id] == SIZE_MAX || home_[v.id] == here || there[here][v.id]) continue;
      there[here][v.id] = true;
      arrivals_[b].push_back({v, home_[v.id], here});
    }
  }
}

void Stage::add_state(std::size_t l) {
  const LaneGraph& lane = lanes_[l];
  const int lanes = static_cast<int>(spec_.lanes.size());
  const int last_tick = static_cast<int>(blocks()) * lanes - 1;
  const auto tick = [&](int block) { return block * lanes + static_cast<int>(l); };
  // When a value is read in each section, and until when its home must keep it for the others.
  struct Reads {
    int first = -1, last = -1;
  };
  std::vector<std::vector<Reads>> reads(sections_.size(), std::vector<Reads>(model_->values));
  for (std::size_t b = 0; b < blocks(); ++b)
    for (const Value v : model_->blocks[b].inputs) {
      Reads& r = reads[section_of_[b]][v.id];
      if (r.first < 0) r.first = static_cast<int>(b);
      r.last = static_cast<int>(b);
    }
  for (std::uint32_t v = 0; v < lane.values.size(); ++v) {
    const ValueFacts& facts = lane.values[v];
    if (!facts.used) continue;
    for (std::size_t s = 0; s < sections_.size(); ++s) {
      const bool home = home_[v] == s;
      const Reads& r = reads[s][v];
      if (!home && r.first < 0) continue;
      StateCost cost{.size = align_up(facts.size, sections_[s].cost.alignment)};
      StateRef ref{l, Value{v}, -1};
      if (facts.once_per_lane) {
        cost.to = last_tick;
      } else {
        // The host writes inputs before the sweep and reads outputs after it, for all lanes.
        int last = std::max(r.last, home ? facts.written_by : r.last);
        if (home)
          for (const auto& others : reads) last = std::max(last, others[v].first);
        const bool host_reads = home && facts.output;
        cost.from = home ? tick(facts.written_by) : facts.written_by < 0 ? 0 : tick(r.first);
        cost.to = host_reads ? last_tick : tick(last);
        if (!host_reads) ref.last_block = last;
      }
      sections_[s].cost.state.push_back(cost);
      state_[s].push_back(ref);
    }
  }
}

Bytes Stage::lower_bound(std::size_t section) const {
  Bytes worst = 0;
  const StageCost& cost = sections_[section].cost;
  const int lanes = cost.lanes;
  for (std::size_t b = 0; b < blocks(); ++b) {
    for (int l = 0; l < lanes; ++l) {
      const int tick = static_cast<int>(b) * lanes + l;
      Bytes own = 0;
      for (const auto& s : cost.state) own += s.from <= tick && tick <= s.to ? s.size : 0;
      if (section_of_[b] == section)
        own += cost.blocks[b].weights + align_up(workspaces_[static_cast<std::size_t>(l) * blocks() + b].size, cost.alignment);
      worst = std::max(worst, own);
    }
  }
  return worst;
}

std::vector<ggml_cgraph*> Stage::distinct_graphs(std::size_t section) const {
  std::vector<ggml_cgraph*> graphs;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    const auto same = std::find(spec_.lanes.begin(), spec_.lanes.begin() + static_cast<std::ptrdiff_t>(l), spec_.lanes[l]);
    if (same != spec_.lanes.begin() + static_cast<std::ptrdiff_t>(l)) continue;
    for (std::size_t b = 0; b < blocks(); ++b)
      if (section_of_[b] == section) graphs.push_back(lanes_[l].blocks[b].graph);
  }
  return graphs;
}

Bytes Stage::largest_crossing() const {
  Bytes largest = 0;
  for (const auto& arrivals : arrivals_)
    for (const Arrival& arrival : arrivals)
      for (const auto& lane : lanes_) largest = std::max(largest, lane.values[arrival.value.id].size);
  return largest;
}

Status Stage::bind(std::span<const Ground> grounds, std::vector<WeightPlace> places, WeightStore& store) {
  if (bound_) return fail(Code::invalid_argument, fmt::format("stage {} is bound already", spec_.name));
  for (const Ground& ground : grounds) {
    plans_.push_back(*ground.plan);
    arenas_.push_back(ground.arena);
  }
  places_ = std::move(places);

  std::size_t own = blocks();
  for (const auto& state : state_) own += state.size();
  SLUICE_ASSIGN(own_context_, GraphContext::open(own * ggml_tensor_overhead()));
  images_.assign(blocks(), nullptr);
  for (std::size_t b = 0; b < blocks(); ++b) {
    const auto kind = places_[b].kind;
    if (kind == WeightPlace::Kind::none || kind == WeightPlace::Kind::mapped) continue;
    const auto& layout = store.layout({spec_.component, static_cast<std::uint32_t>(b)});
    images_[b] = ggml_new_tensor_1d(own_context_.get(), GGML_TYPE_I8, static_cast<std::int64_t>(layout.size));
    SLUICE_TRY(arenas_[section_of_[b]]->bind(images_[b], places_[b].address));
  }
  dead_.resize(lanes_.size() * blocks());
  std::vector<std::vector<std::vector<Address>>> addresses(sections_.size());  // [section][lane][value]
  for (std::size_t s = 0; s < sections_.size(); ++s) {
    addresses[s].assign(lanes_.size(), std::vector<Address>(model_->values, 0));
    values_.emplace_back(lanes_.size(), std::vector<ggml_tensor*>(model_->values, nullptr));
    for (std::size_t i = 0; i < state_[s].size(); ++i) {
      const StateRef& ref = state_[s][i];
      const ValueFacts& facts = lanes_[ref.lane].values[ref.value.id];
      const Address at = addresses[s][ref.lane][ref.value.id] = plans_[s].state[i];
      ggml_tensor* tensor = ggml_new_tensor(own_context_.get(), facts.type, 4, facts.shape.data());
      SLUICE_TRY(arenas_[s]->bind(tensor, at));
      values_[s][ref.lane][ref.value.id] = tensor;
      if (ref.last_block >= 0)
        dead_[ref.lane * blocks() + static_cast<std::size_t>(ref.last_block)].push_back({s, at, facts.size});
    }
  }
  for (std::size_t l = 0; l < lanes_.size(); ++l)
    for (std::size_t b = 0; b < blocks(); ++b)
      if (auto done = bind_block(l, b, addresses[section_of_[b]], *grounds[section_of_[b]].device, store); !done)
        return fail_while(fmt::format("{}, block {}", spec_.name, model_->blocks[b].name), std::move(done).error());
  bound_ = true;
  return {};
}

Status Stage::bind_block(std::size_t l, std::size_t b, const std::vector<std::vector<Address>>& state, const Device& device,
                         WeightStore& store) {
  BlockGraph& g = lanes_[l].blocks[b];
  const Block& block = model_->blocks[b];
  const BlockId id{spec_.component, static_cast<std::uint32_t>(b)};
  const Arena& arena = *arenas_[section_of_[b]];
  const BlockLayout& layout = store.layout(id);
  for (std::size_t w = 0; w < g.weights.size(); ++w) {
    if (layout.tensors[w].apart) {
      const ggml_tensor* loaded = store.split_tensor(id, w);
      if (!loaded) return fail(Code::invalid_argument, "a weight whose rows are spread is not loaded");
      // The loaded tensor's own place: allocating another in a buffer of this kind would take the memory again.
      g.weights[w]->buffer = loaded->buffer;
      g.weights[w]->data = loaded->data;
      g.weights[w]->extra = loaded->extra;
      continue;
    }
    if (places_[b].kind == WeightPlace::Kind::mapped) {
      SLUICE_ASSIGN(const bool done, store.bind_mapped(id, w, g.weights[w]));
      if (!done) return fail(Code::invalid_argument, "a weight planned to be used in place cannot be");
    } else {
      SLUICE_TRY(arena.bind(g.weights[w], places_[b].address + layout.tensors[w].offset));
    }
  }
  for (std::size_t i = 0; i < g.inputs.size(); ++i) SLUICE_TRY(arena.bind(g.inputs[i], state[l][block.inputs[i].id]));
  for (std::size_t i = 0; i < g.outputs.size(); ++i) SLUICE_TRY(arena.bind(g.outputs[i], state[l][block.outputs[i].id]));
  for (const auto& node : workspaces_[l * blocks() + b].nodes)
    SLUICE_TRY(arena.bind(node.tensor, plans_[section_of_[b]].workspace[b] + node.offset));
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
  return check_bound_nodes(device, g.graph);
}

}  // namespace sluice
