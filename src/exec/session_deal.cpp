// How a session deals the blocks of a component out to devices.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "device/graph_cost.h"
#include "exec/session.h"

namespace sluice {
namespace {
// Planning one takes milliseconds. The first nearly always does.
constexpr std::size_t kMostTried = 200;
// Of those that cannot fit, so many are looked at closely for the number a refusal names.
constexpr std::size_t kMostRefused = 8;
}  // namespace

std::vector<std::optional<Bytes>> Session::budgets_of(const std::vector<std::size_t>& devices) const {
  std::vector<std::optional<Bytes>> budgets;
  for (const std::size_t d : devices) budgets.push_back(budget_of(d));
  return budgets;
}

Result<std::vector<Stage>> Session::build_stages(const std::vector<StageSpec>& specs, std::vector<Bytes>& backends) {
  enum class Way { fixed, dealt, to_deal };  // cannot be dealt out (now), stays as it was dealt out, is to be dealt out
  struct Work {
    std::vector<std::size_t> candidates;
    Way way = Way::fixed;
    std::optional<Stage> stage;
    Survey survey;
  };
  std::vector<Work> work(specs.size());
  for (std::size_t s = 0; s < specs.size(); ++s) {
    Work& w = work[s];
    w.candidates = store_.devices_of(specs[s].component);
    const bool one = w.candidates.size() - (w.candidates.back() == options_.fallback ? 1 : 0) <= 1;
    const auto dealt = dealt_.find(specs[s].component);
    // Where rows are spread, one device runs all blocks.
    if (w.candidates.size() > 1 && !store_.splits_rows(specs[s].component) && !store_.in_use(specs[s].component))
      w.way = Way::dealt;
    if (w.way == Way::dealt && !one && (dealt == dealt_.end() || dealt->second.budgets != budgets_of(w.candidates)))
      w.way = Way::to_deal;
    if (w.way == Way::to_deal) continue;
    auto stage = Stage::build(specs[s], store_, sites(nullptr));
    if (stage)
      w.stage = *std::move(stage);
    else if (w.way == Way::dealt && stage.error().code == Code::unsupported)
      w.way = Way::to_deal;
    else
      return fail(std::move(stage).error());
  }
  // Stages run one after another on a device, and its backend keeps what the most demanding of them made it take.
  backends.assign(memories_.size(), 0);
  for (const Work& w : work)
    for (std::size_t i = 0; w.stage && i < w.stage->sections().size(); ++i) {
      const std::size_t d = w.stage->sections()[i].device;
      SLUICE_ASSIGN(const Bytes bytes, memories_[d]->device().measure_backend(w.stage->distinct_graphs(i)));
      backends[d] = std::max(backends[d], bytes);
    }
  for (bool again = true; again;) {
    again = false;
    for (std::size_t s = 0; s < specs.size(); ++s) {
      Work& w = work[s];
      if (w.way == Way::dealt && !lacking(*w.stage, backends).empty()) {
        w.way = Way::to_deal;
        w.stage.reset();
      }
      if (w.way != Way::to_deal || !w.survey.devices.empty()) continue;
      SLUICE_ASSIGN(w.survey, survey(specs[s], w.candidates));
      for (std::size_t i = 0; i < w.candidates.size(); ++i) {
        Bytes& backend = backends[w.candidates[i]];
        backend = std::max(backend, w.survey.backends[i]);
      }
      again = true;  // what the backends take more may leave too little for the others
    }
  }
  std::vector<std::vector<Lack>> refusals;
  for (std::size_t s = 0; s < specs.size(); ++s) {
    Work& w = work[s];
    if (w.way != Way::to_deal) continue;
    std::vector<Lack> ways_out;
    SLUICE_ASSIGN(w.stage, deal_out(specs[s], w.candidates, w.survey, backends, ways_out));
    if (w.stage)
      dealt_[specs[s].component].budgets = budgets_of(w.candidates);
    else
      refusals.push_back(std::move(ways_out));
  }
  if (!refusals.empty()) {
    for (const Work& w : work)
      if (w.stage)
        if (auto lacks = lacking(*w.stage, backends); !lacks.empty()) refusals.push_back(std::move(lacks));
    return refuse(refusals);
  }
  std::vector<Stage> stages;
  for (Work& w : work) stages.push_back(*std::move(w.stage));
  return stages;
}

tl::unexpected<Error> Session::refuse(const std::vector<std::vector<Lack>>& refusals) {
  // Raising one device's budget shall be enough for every stage. Where none is, the first refusal is told.
  std::optional<Lack> least;
  for (const Lack& way : refusals[0]) {
    Lack raised = way;
    const bool enough = std::all_of(refusals.begin(), refusals.end(), [&](const auto& ways) {
      const auto same = std::find_if(ways.begin(), ways.end(), [&](const Lack& w) { return w.device == way.device; });
      if (same != ways.end()) raised.needed = std::max(raised.needed, same->needed);
      return same != ways.end();
    });
    if (enough && (!least || raised.missing() < least->missing())) least = raised;
  }
  for (const auto& ways : refusals)
    if (!least && !ways.empty()) least = ways[0];
  if (!least) return fail(Code::over_budget, "the request fits these devices in no way");
  refused_on_ = least->device;
  return fail(Code::over_budget,
              fmt::format("the largest block with its workspace and state does not fit {}",
                          memories_[least->device]->device().info().name),
              least->needed, least->budget);
}

std::string Session::why_elsewhere(BlockId block) const {
  const auto dealt = dealt_.find(block.component);
  return dealt == dealt_.end() || dealt->second.elsewhere.empty() ? std::string{} : dealt->second.elsewhere[block.block];
}

Result<Session::Survey> Session::survey(const StageSpec& spec, const std::vector<std::size_t>& candidates) const {
  const Model& model = store_.model(spec.component);
  const std::size_t blocks = model.blocks.size();
  Survey found;
  auto& values = found.values;
  values.resize(model.values);
  for (std::size_t b = 0; b < blocks; ++b) {
    for (const Value v : model.blocks[b].outputs) values[v.id].written_by = static_cast<int>(b);
    for (const Value v : model.blocks[b].inputs) values[v.id].read_by.push_back(static_cast<int>(b));
  }
  for (const std::size_t d : candidates) {
    Device& device = memories_[d]->device();
    const auto rates = device.rates();
    SpreadDevice& on = found.devices.emplace_back();
    on.link_bytes_per_s = rates.link_bytes_per_s;
    Bytes& backend = found.backends.emplace_back(0);
    std::vector<BlockLayout> layouts;
    for (std::uint32_t b = 0; b < blocks; ++b) {
      layouts.push_back(store_.layout_on({spec.component, b}, d));
      on.weights.push_back(layouts.back().size);
    }
    on.workspace.assign(blocks, 0);
    on.compute_s.assign(blocks, 0);
    on.unable.assign(blocks, {});
    const Site site = sites(nullptr)[d];
    std::vector<Bytes> sizes(model.values, 0);
    for (std::size_t l = 0; l < spec.lanes.size(); ++l) {
      std::vector<ggml_cgraph*> graphs;
      auto lane = build_lane(
          model, spec.lanes[l], [&](std::size_t b) -> const BlockLayout& { return layouts[b]; },
          [&](std::size_t) -> const Site& { return site; });
      if (!lane) return fail_while(spec.name, std::move(lane).error());
      for (std::size_t b = 0; b < blocks; ++b) {
        const BlockGraph& g = lane->blocks[b];
        const auto workspace = place_workspace(g.graph, g.outputs, device.buffer_type(), Arena::chunk_size_for(device.info()));
        on.workspace[b] = std::max(on.workspace[b], workspace.size);
        on.compute_s[b] += graph_flops(g.graph) / rates.flops_per_s;
        if (on.unable[b].empty()) on.unable[b] = lane->unsupported[b];
        if (lane->unsupported[b].empty()) graphs.push_back(g.graph);
      }
      SLUICE_ASSIGN(const Bytes taken, device.measure_backend(graphs));
      backend = std::max(backend, taken);
      for (std::size_t v = 0; v < sizes.size(); ++v) sizes[v] += lane->values[v].used ? lane->values[v].size : 0;
    }
    for (std::size_t v = 0; v < sizes.size(); ++v) values[v].size = std::max(values[v].size, sizes[v]);
  }
  return found;
}

std::vector<Session::Lack> Session::lacking(const Stage& stage, const std::vector<Bytes>& backends) const {
  std::vector<Lack> lacks;
  for (std::size_t s = 0; s < stage.sections().size(); ++s) {
    const std::size_t d = stage.sections()[s].device;
    const auto budget = budget_of(d);
    if (!budget) continue;
    auto planner = StagePlanner::open(stage.cost(s));
    if (!planner) continue;  // an object larger than a buffer: buffers are enlarged for it
    Bytes smallest = planner->smallest();
    if (options_.plan.policy != Policy::all_streamed)
      if (const auto all = planner->plan(UINT64_MAX, {.policy = Policy::all_resident}))
        smallest = std::min(smallest, all->transient + all->resident_bytes);
    const Bytes needed = smallest + memories_[d]->set_aside(backends[d], {}) + pending_[d];
    if (needed > *budget) lacks.push_back({d, needed, *budget});
  }
  return lacks;
}

Status Session::assign(ComponentId component, const std::vector<std::size_t>& device_of) {
  std::vector<std::pair<std::size_t, BlockId>> moved;
  for (std::uint32_t b = 0; b < device_of.size(); ++b) {
    const BlockId id{component, b};
    if (const std::size_t from = store_.device_of(id); from != device_of[b]) moved.emplace_back(from, id);
  }
  if (moved.empty()) return {};
  SLUICE_TRY(store_.assign(component, device_of));
  std::erase_if(plans_, [&](const auto& p) {
    return std::any_of(p->specs.begin(), p->specs.end(), [&](const auto& spec) { return spec.component == component; });
  });
  for (const auto& [from, id] : moved) memories_[from]->give_up(id, Leaving::closed);
  return {};
}

Result<std::optional<Stage>> Session::deal_out(const StageSpec& spec, const std::vector<std::size_t>& candidates,
                                               Survey& survey, const std::vector<Bytes>& backends,
                                               std::vector<Lack>& ways_out) {
  const Model& model = store_.model(spec.component);
  auto& devices = survey.devices;
  std::optional<std::size_t> fallback;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const DeviceMemory& memory = *memories_[candidates[i]];
    if (candidates[i] == options_.fallback) fallback = i;
    if (const auto budget = budget_of(candidates[i]))
      devices[i].capacity =
          *budget - std::min(*budget, memory.set_aside(backends[candidates[i]], {}) + pending_[candidates[i]]);
  }
  const auto spreads = spread_blocks(devices, survey.values, fallback);
  if (spreads.empty()) {
    for (std::size_t b = 0; b < model.blocks.size(); ++b) {
      if (std::any_of(devices.begin(), devices.end(), [&](const auto& d) { return d.unable[b].empty(); })) continue;
      std::string why;
      for (const auto& d : devices) why += (why.empty() ? "" : "; ") + d.unable[b];
      return fail(Code::unsupported, fmt::format("{}, block {}: {}", spec.name, model.blocks[b].name, why));
    }
  }
  std::vector<std::size_t> before;
  for (std::uint32_t b = 0; b < model.blocks.size(); ++b) before.push_back(store_.device_of(BlockId{spec.component, b}));
  const auto attempt = [&](const Spread& spread) -> Result<std::optional<Stage>> {
    std::vector<std::size_t> device_of;
    for (const std::size_t i : spread.device_of) device_of.push_back(candidates[i]);
    SLUICE_TRY(assign(spec.component, device_of));
    SLUICE_ASSIGN(auto stage, Stage::build(spec, store_, sites(nullptr)));
    const auto lacks = lacking(stage, backends);
    if (lacks.empty()) {
      dealt_[spec.component].elsewhere = spread.elsewhere;
      return std::optional(std::move(stage));
    }
    if (lacks.size() > 1) return std::optional<Stage>();
    const auto known =
        std::find_if(ways_out.begin(), ways_out.end(), [&](const Lack& w) { return w.device == lacks[0].device; });
    if (known == ways_out.end())
      ways_out.push_back(lacks[0]);
    else
      known->needed = std::min(known->needed, lacks[0].needed);
    return std::optional<Stage>();
  };
  std::vector<const Spread*> fit, others;
  for (const Spread& spread : spreads) (spread.fits ? fit : others).push_back(&spread);
  if (fit.size() > kMostTried) fit.resize(kMostTried);
  // None may fit: the number that works is looked for where a single device lacks least. All on one device is among them, so
  // that raising a single budget is always a way out.
  const auto missing = [&](const Spread& spread) {
    Bytes bytes = 0;
    int lacking_devices = 0;
    for (std::size_t d = 0; d < devices.size(); ++d) {
      if (!devices[d].capacity || spread.least[d] <= *devices[d].capacity) continue;
      bytes += spread.least[d] - *devices[d].capacity;
      ++lacking_devices;
    }
    return std::pair(lacking_devices, bytes);
  };
  std::stable_sort(others.begin(), others.end(), [&](auto* a, auto* b) { return missing(*a) < missing(*b); });
  for (std::size_t i = 0; i < others.size(); ++i)
    if (i < kMostRefused || std::set(others[i]->device_of.begin(), others[i]->device_of.end()).size() == 1)
      fit.push_back(others[i]);
  for (const Spread* spread : fit) {
    SLUICE_ASSIGN(auto stage, attempt(*spread));
    if (!stage) continue;
    ways_out.clear();
    return stage;
  }
  SLUICE_TRY(assign(spec.component, before));
  return std::optional<Stage>();
}

}  // namespace sluice
