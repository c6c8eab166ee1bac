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
// Of those that cannot fit, so many are looked at closely for the number a refusal names: the bounds are near it, so that it is
// found among the first.
constexpr std::size_t kMostRefused = 100;

// A chunk without an end. Where one ends costs some bytes, and how large it has to be is known when blocks are dealt out.
constexpr Bytes kEndless = Bytes{1} << 60;

/// What one buffer has to hold for a section.
Bytes largest_of(const StageCost& cost) {
  Bytes largest = 0;
  for (const BlockCost& b : cost.blocks) largest = std::max({largest, b.weights, b.largest_piece()});
  for (const StateCost& state : cost.state) largest = std::max(largest, state.size);
  return largest;
}
}  // namespace

std::vector<std::optional<Bytes>> Session::budgets_of(const std::vector<std::size_t>& devices) const {
  std::vector<std::optional<Bytes>> budgets;
  for (const std::size_t d : devices) budgets.push_back(budget_of(d));
  return budgets;
}

Result<std::vector<Stage>> Session::build_stages(const std::vector<StageSpec>& specs, std::vector<Bytes>& backends) {
  // Several stages on a device share its residents: only what they need while they stream can be told one by one.
  const bool alone = specs.size() == 1;
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
    auto stage = build_stage(specs[s]);
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
      if (w.way == Way::dealt && !lacking(*w.stage, backends, alone).empty()) {
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
    SLUICE_ASSIGN(w.stage, deal_out(specs[s], w.candidates, w.survey, backends, alone, ways_out));
    if (w.stage)
      dealt_[specs[s].component].budgets = budgets_of(w.candidates);
    else
      refusals.push_back(std::move(ways_out));
  }
  // What cannot be dealt out may lack something, too: said at once, so that one number does for all.
  const bool all_fixed = std::all_of(work.begin(), work.end(), [](const Work& w) { return w.way == Way::fixed; });
  for (const Work& w : work)
    if (w.stage && !all_fixed)
      if (auto lacks = lacking(*w.stage, backends, alone); !lacks.empty()) refusals.push_back(std::move(lacks));
  if (!refusals.empty()) return refuse(refusals);
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
  const bool one_is_enough = least.has_value();
  for (const auto& ways : refusals)
    if (!least && !ways.empty()) least = ways[0];
  if (!least) {
    std::string names;
    for (DeviceMemory* memory : memories_) names += (names.empty() ? "" : ", ") + memory->device().info().name;
    return fail(Code::over_budget, fmt::format("the request needs more than one of the budgets raised (of {})", names));
  }
  refused_on_ = least->device;
  return fail(Code::over_budget,
              fmt::format("the largest block with its workspace and state does not fit {}{}",
                          memories_[least->device]->device().info().name, one_is_enough ? "" : kAnotherToo),
              least->needed, least->budget);
}

Result<Stage> Session::build_stage(const StageSpec& spec) const {
  auto on = sites(nullptr);
  SLUICE_ASSIGN(auto stage, Stage::build(spec, store_, on));
  bool enlarged = false;
  for (const Section& section : stage.sections()) {
    on[section.device].chunk = chunk_for(section.device, largest_of(section.cost));
    enlarged = enlarged || on[section.device].chunk > 0;
  }
  if (!enlarged) return stage;
  return Stage::build(spec, store_, on);
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
  for (const Input& input : model.inputs) values[input.value.id].once = input.refresh == Refresh::once_per_lane;
  for (const Value v : model.outputs) values[v.id].output = true;
  for (SpreadValue& value : values) value.size = value.lane = UINT64_MAX;
  for (const std::size_t d : candidates) {
    Device& device = memories_[d]->device();
    const auto rates = device.rates();
    SpreadDevice& on = found.devices.emplace_back();
    on.link_bytes_per_s = rates.link_bytes_per_s;
    Bytes& backend = found.backends.emplace_back(0);
    std::vector<BlockLayout> layouts;
    for (std::uint32_t b = 0; b < blocks; ++b) {
      layouts.push_back(store_.layout_on({spec.component, b}, d));
      on.weights.push_back(align_up(layouts.back().size, device.info().alignment));
    }
    on.workspace.assign(blocks, UINT64_MAX);
    on.compute_s.assign(blocks, 0);
    on.unable.assign(blocks, {});
    const Site site = sites(nullptr)[d];
    std::vector<Bytes> sizes(model.values, 0), smallest(model.values, UINT64_MAX);
    for (std::size_t l = 0; l < spec.lanes.size(); ++l) {
      std::vector<ggml_cgraph*> graphs;
      auto lane = build_lane(
          model, spec.lanes[l], [&](std::size_t b) -> const BlockLayout& { return layouts[b]; },
          [&](std::size_t) -> const Site& { return site; });
      if (!lane) return fail_while(spec.name, std::move(lane).error());
      for (std::size_t b = 0; b < blocks; ++b) {
        const BlockGraph& g = lane->blocks[b];
        const auto workspace = place_workspace(g.graph, g.outputs, device.buffer_type(), kEndless, device.info().alignment);
        on.workspace[b] = std::min(on.workspace[b], align_up(workspace.size, device.info().alignment));
        on.compute_s[b] += graph_flops(g.graph) / rates.flops_per_s;
        if (on.unable[b].empty()) on.unable[b] = lane->unsupported[b];
        if (lane->unsupported[b].empty()) graphs.push_back(g.graph);
      }
      SLUICE_ASSIGN(const Bytes taken, device.measure_backend(graphs));
      backend = std::max(backend, taken);
      for (std::size_t v = 0; v < sizes.size(); ++v) {
        const Bytes size = lane->values[v].used ? align_up(lane->values[v].size, device.info().alignment) : 0;
        sizes[v] += size;
        smallest[v] = std::min(smallest[v], size);
      }
    }
    for (std::size_t v = 0; v < sizes.size(); ++v) {
      values[v].size = std::min(values[v].size, sizes[v]);
      values[v].lane = std::min(values[v].lane, smallest[v]);
    }
  }
  return found;
}

std::vector<Session::Lack> Session::lacking(const Stage& stage, const std::vector<Bytes>& backends, bool alone) const {
  std::vector<Lack> lacks;
  for (std::size_t s = 0; s < stage.sections().size(); ++s) {
    const std::size_t d = stage.sections()[s].device;
    const auto budget = budget_of(d);
    if (!budget) continue;
    // As when it is planned: blocks that cannot leave are beside the plan.
    StageCost cost = stage.cost(s);
    std::set<BlockId> fixed_here;
    Bytes aside = 0;
    for (std::uint32_t b = 0; b < cost.blocks.size(); ++b) {
      const BlockId id{stage.spec().component, b};
      if (cost.blocks[b].weights == 0 || !fixed(id)) continue;
      fixed_here.insert(id);
      aside += cost.blocks[b].weights;
      cost.blocks[b].weights = 0;
    }
    aside += memories_[d]->set_aside(backends[d], fixed_here);
    auto planner = StagePlanner::open(cost);
    if (!planner) continue;  // whatever it is, the plan says it better
    Bytes smallest = planner->smallest();
    if (alone && options_.plan.policy != Policy::all_streamed)
      if (const auto all = planner->plan(UINT64_MAX, {.policy = Policy::all_resident}))
        smallest = std::min(smallest, all->transient + all->resident_bytes);
    const Bytes needed = smallest + aside + pending_[d];
    if (needed > *budget) lacks.push_back({d, needed, *budget});
  }
  return lacks;
}

void Session::moved(ComponentId component, const std::vector<std::size_t>& before) {
  std::vector<std::pair<std::size_t, BlockId>> moved;
  for (std::uint32_t b = 0; b < before.size(); ++b) {
    const BlockId id{component, b};
    if (store_.device_of(id) != before[b]) moved.emplace_back(before[b], id);
  }
  if (moved.empty()) return;
  std::erase_if(plans_, [&](const auto& p) {
    return std::any_of(p->specs.begin(), p->specs.end(), [&](const auto& spec) { return spec.component == component; });
  });
  for (const auto& [from, id] : moved) memories_[from]->give_up(id, Leaving::closed);
}

Result<std::optional<Stage>> Session::deal_out(const StageSpec& spec, const std::vector<std::size_t>& candidates,
                                               Survey& survey, const std::vector<Bytes>& backends, bool alone,
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
    SLUICE_TRY(store_.assign(spec.component, device_of));
    SLUICE_ASSIGN(auto stage, build_stage(spec));
    const auto lacks = lacking(stage, backends, alone);
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
  const auto take = [&](const Spread& spread) -> Result<std::optional<Stage>> {
    auto stage = attempt(spread);
    if (stage && *stage)
      moved(spec.component, before);
    else if (!stage)
      SLUICE_TRY(store_.assign(spec.component, before));
    return stage;
  };
  for (const Spread* spread : fit)
    if (auto stage = take(*spread); !stage || *stage) return stage;
  // None fits: the number that works is looked for where a single device lacks, the least bound first, as long as a bound is
  // below what was found. All on one device is among them, so that raising a single budget is a way out wherever some device
  // can run everything.
  struct Bound {
    const Spread* spread = nullptr;
    std::size_t device = 0;
    Bytes missing = 0;
  };
  std::vector<Bound> bounds;
  for (const Spread* spread : others) {
    int lacking_devices = 0;
    Bound bound{spread};
    for (std::size_t d = 0; d < devices.size(); ++d) {
      if (!devices[d].capacity || spread->least[d] <= *devices[d].capacity) continue;
      ++lacking_devices;
      bound.device = d;
      bound.missing = spread->least[d] - *devices[d].capacity;
    }
    if (lacking_devices == 1) bounds.push_back(bound);
  }
  std::stable_sort(bounds.begin(), bounds.end(), [](const Bound& a, const Bound& b) { return a.missing < b.missing; });
  std::size_t tried = 0;
  for (const Bound& bound : bounds) {
    const auto& on = bound.spread->device_of;
    const bool one = std::all_of(on.begin(), on.end(), [&](std::size_t d) { return d == on[0]; });
    const auto known =
        std::find_if(ways_out.begin(), ways_out.end(), [&](const Lack& w) { return w.device == candidates[bound.device]; });
    if (known != ways_out.end() && known->missing() <= bound.missing) continue;
    if (!one && tried >= kMostRefused) continue;
    ++tried;
    if (auto stage = take(*bound.spread); !stage || *stage) return stage;
  }
  SLUICE_TRY(store_.assign(spec.component, before));
  return std::optional<Stage>();
}

}  // namespace sluice
