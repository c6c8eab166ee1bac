#include "exec/session.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {
namespace {
// Two prompt lengths and two sizes at hand; more are rebuilt (milliseconds).
constexpr std::size_t kPlansKept = 4;
// Embeddings of a few prompts; some hundred kilobytes each.
constexpr std::size_t kCacheEntries = 16;
constexpr Bytes kUnlimited = Bytes{1} << 60;

/// An object that one buffer has to hold.
struct Object {
  Bytes size = 0;
  std::string name;  // "encode: block 'embeddings'"
};

/// The stage's largest such object, and of those above `limit` the first by name.
Object largest_object(const Stage& stage, const StageNeed& need, Bytes limit) {
  Object largest;
  for (std::size_t b = 0; b < stage.blocks(); ++b) {
    const BlockCost& block = need.cost.blocks[b];
    const Bytes workspace = block.contiguous ? std::min(block.contiguous, block.workspace) : block.workspace;
    const Bytes size = std::max(need.mappable[b] ? 0 : block.weights, workspace);
    if (size > limit && largest.name.empty())
      largest.name = fmt::format("{}: block '{}'", stage.spec().name, stage.model().blocks[b].name);
    largest.size = std::max(largest.size, size);
  }
  for (const StateCost& state : need.cost.state) {
    if (state.size > limit && largest.name.empty()) largest.name = fmt::format("{}: a value between blocks", stage.spec().name);
    largest.size = std::max(largest.size, state.size);
  }
  return largest;
}

std::vector<ComponentId> components_of(const Prepared::Part& part, const std::vector<StageSpec>& specs) {
  std::vector<ComponentId> components;
  for (const std::size_t s : part.stages) components.push_back(specs[s].component);
  return components;
}

}  // namespace

Session::Session(std::vector<DeviceMemory*> memories, WeightStore& store, SessionOptions options)
    : memories_(std::move(memories)),
      store_(store),
      options_(std::move(options)),
      cache_(store.host_ledger(), kCacheEntries),
      claims_(memories_.size(), 0) {
  for (DeviceMemory* memory : memories_)
    variants_.push_back(options_.variants.value_or(variants_for(ggml_backend_buft_get_device(memory->device().buffer_type()))));
}

Session::~Session() { release(); }

void Session::measure(Prepared::Part& part, std::set<BlockId> planned) const {
  const DeviceMemory& memory = *memories_[part.device];
  const auto budget = memory.budget();
  planned.insert(part.fixed.begin(), part.fixed.end());
  part.aside = memory.set_aside(part.backend, planned);
  for (const BlockId id : part.fixed) part.aside += align_up(store_.layout(id).size, memory.device().info().alignment);
  part.capacity = budget;
  if (budget) part.capacity = *budget - std::min(*budget, part.aside);
}

bool Session::outdated(const Prepared& prepared) const {
  return std::any_of(prepared.parts.begin(), prepared.parts.end(), [&](const auto& part) {
    // Blocks that cannot leave and that the plan keeps are the plan's own bytes.
    std::set<BlockId> planned;
    for (std::size_t i = 0; i < part.stages.size(); ++i) {
      const auto& places = part.plan.stages[i].places;
      for (std::uint32_t b = 0; b < places.size(); ++b)
        if (places[b].kind == WeightPlace::Kind::resident || places[b].kind == WeightPlace::Kind::mapped)
          planned.insert({prepared.specs[part.stages[i]].component, b});
    }
    Prepared::Part now;
    now.device = part.device;
    now.backend = part.backend;
    now.fixed = part.fixed;
    measure(now, planned);
    const auto moved = [&](std::size_t s) { return store_.device_of(prepared.specs[s].component) != part.device; };
    return now.capacity != part.capacity || std::any_of(part.stages.begin(), part.stages.end(), moved);
  });
}

Result<Prepared*> Session::prepare(const std::vector<StageSpec>& specs) {
  const auto found =
      std::find_if(plans_.begin(), plans_.end(), [&](const auto& p) { return p->specs == specs && !outdated(*p); });
  if (found != plans_.end()) {
    std::rotate(found, found + 1, plans_.end());
    return plans_.back().get();
  }
  auto prepared = std::make_unique<Prepared>();
  prepared->specs = specs;
  for (std::size_t s = 0; s < specs.size(); ++s) {
    const std::size_t device = store_.device_of(specs[s].component);
    auto stage = Stage::build(specs[s], store_, memories_[device]->device(), variants_[device]);
    if (!stage) return fail(std::move(stage).error());
    prepared->stages.push_back(std::move(*stage));
    auto part = std::find_if(prepared->parts.begin(), prepared->parts.end(), [&](auto& p) { return p.device == device; });
    if (part == prepared->parts.end()) {
      prepared->parts.push_back({});
      part = prepared->parts.end() - 1;
      part->device = device;
    }
    prepared->part_of.push_back(static_cast<std::size_t>(part - prepared->parts.begin()));
    prepared->index_in.push_back(part->stages.size());
    part->stages.push_back(s);
  }
  prepared->generation.assign(specs.size(), -1);
  for (auto& part : prepared->parts) {
    Device& device = memories_[part.device]->device();
    // What cannot leave, or could not once it is there, stays whatever is planned, and its bytes are not the plan's.
    for (const std::size_t s : part.stages) {
      for (std::uint32_t b = 0; b < prepared->stages[s].blocks(); ++b) {
        const BlockId id{specs[s].component, b};
        if (prepared->stages[s].cost().blocks[b].weights > 0 && fixed(id)) part.fixed.insert(id);
      }
    }
    SLUICE_TRY(enlarge_buffers(*prepared, part));
    const auto needs = stage_needs(*prepared, part);
    std::vector<ggml_cgraph*> graphs;
    for (const std::size_t s : part.stages)
      for (ggml_cgraph* g : prepared->stages[s].distinct_graphs()) graphs.push_back(g);
    SLUICE_ASSIGN(part.backend, device.measure_backend(graphs));
    measure(part, {});
    auto plan = plan_request(needs, part.capacity.value_or(kUnlimited), options_.plan);
    if (!plan) {
      Error e = std::move(plan).error();
      if (e.code == Code::over_budget && e.needed > 0) {
        e.needed += part.aside;
        e.available = memories_[part.device]->budget().value_or(kUnlimited);
      }
      return fail(std::move(e));
    }
    part.plan = std::move(*plan);
    part.placed = part.plan;
  }
  for (const auto& spec : specs) memories_[store_.device_of(spec.component)]->use(spec.component, this);
  ++counters_.plans_built;
  if (plans_.size() >= kPlansKept) plans_.erase(plans_.begin());
  plans_.push_back(std::move(prepared));
  return plans_.back().get();
}

Status Session::enlarge_buffers(Prepared& prepared, Prepared::Part& part) {
  Device& device = memories_[part.device]->device();
  const Bytes preferred = Arena::chunk_size_for(device.info());
  const auto needs = stage_needs(prepared, part);
  Bytes largest = 0;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const Object object = largest_object(prepared.stages[part.stages[i]], needs[i], preferred);
    if (part.giant.empty()) part.giant = object.name;
    largest = std::max(largest, object.size);
  }
  if (largest <= preferred) return {};
  part.chunk = (largest + preferred - 1) / preferred * preferred;
  for (const std::size_t s : part.stages) {
    SLUICE_ASSIGN(prepared.stages[s], Stage::build(prepared.specs[s], store_, device, variants_[part.device], part.chunk));
  }
  return {};
}

bool Session::fixed(BlockId block) const {
  return store_.held(block) || store_.has_flag(block, BlockFlag::merged) || store_.has_flag(block, BlockFlag::row_split);
}

std::vector<StageNeed> Session::stage_needs(const Prepared& prepared, const Prepared::Part& part) const {
  std::vector<StageNeed> needs;
  for (const std::size_t s : part.stages) {
    const ComponentId component = prepared.specs[s].component;
    StageNeed need{prepared.stages[s].cost(), component, {}};
    for (std::uint32_t b = 0; b < need.cost.blocks.size(); ++b) {
      need.mappable.push_back(store_.mappable({component, b}));
      if (part.fixed.contains({component, b})) need.cost.blocks[b].weights = 0;
    }
    needs.push_back(std::move(need));
  }
  return needs;
}

DeviceMemory::Need Session::need_of(const Prepared& prepared, const Prepared::Part& part, const std::vector<bool>& skip) const {
  const DeviceMemory& memory = *memories_[part.device];
  DeviceMemory::Need need;
  need.zone = part.placed.zone;
  need.workspace = part.placed.workspace();
  need.backend = part.backend;
  need.chunk = part.chunk;
  need.components = components_of(part, prepared.specs);
  for (const BlockId id : part.fixed) {
    using Where = DeviceMemory::Wanted::Where;
    const auto place = memory.place(id);
    const Bytes size = align_up(store_.layout(id).size, memory.device().info().alignment);
    if (place && !Arena::on_shelf(*place))
      need.wanted.push_back({id, size, Where::zone, *place});  // where it is, or carried
    else
      need.wanted.push_back({id, size, store_.mappable(id) && !place ? Where::booked : Where::shelf, 0});
  }
  auto order = part.stages;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return prepared.specs[a].sweeps > prepared.specs[b].sweeps; });
  for (const std::size_t s : order) {
    const StagePlacement& placement = prepared.placement(s);
    // In the order of the sweep: what is used latest is given up first when others need room, and shall lie together.
    auto residents = placement.plan.give_up;
    std::sort(residents.begin(), residents.end());
    for (const std::uint32_t block : residents) {
      using Where = DeviceMemory::Wanted::Where;
      const BlockId id{prepared.specs[s].component, block};
      const WeightPlace& place = placement.places[block];
      // What does not run keeps what it has and is brought nothing.
      if (!skip.empty() && skip[s] && !memory.resident(id)) continue;
      const Where where = place.kind == WeightPlace::Kind::mapped ? Where::booked
                          : place.any_shelf()                     ? Where::shelf
                                                                  : Where::zone;
      need.wanted.push_back({id, prepared.stages[s].cost().blocks[block].weights, where, place.address});
    }
  }
  return need;
}

std::vector<WeightPlace> Session::places_of(const Prepared& prepared, std::size_t stage) const {
  const DeviceMemory& memory = *memories_[prepared.parts[prepared.part_of[stage]].device];
  auto places = prepared.placement(stage).places;
  for (std::uint32_t b = 0; b < places.size(); ++b) {
    const BlockId id{prepared.specs[stage].component, b};
    if (prepared.parts[prepared.part_of[stage]].fixed.contains(id)) {
      const auto at = memory.place(id);
      places[b] = at ? WeightPlace{WeightPlace::Kind::resident, *at} : WeightPlace{WeightPlace::Kind::mapped, 0};
      continue;
    }
    if (places[b].kind != WeightPlace::Kind::resident) continue;
    // A block that the plan puts into the zone may be on a shelf already, and has a place there that is as good.
    const auto place = memory.place({prepared.specs[stage].component, b});
    if (places[b].any_shelf() || (place && Arena::on_shelf(*place))) places[b].address = place.value_or(places[b].address);
  }
  return places;
}

Status Session::bind_stage(Prepared& prepared, std::size_t s) {
  const std::size_t device = prepared.parts[prepared.part_of[s]].device;
  const Arena& arena = memories_[device]->arena();
  auto places = places_of(prepared, s);
  Stage& stage = prepared.stages[s];
  if (stage.bound()) {
    if (prepared.generation[s] == arena.generation() && stage.places() == places) return {};
    // Tensors are bound once: what lies elsewhere now gets new ones.
    SLUICE_ASSIGN(stage, Stage::build(prepared.specs[s], store_, memories_[device]->device(), variants_[device],
                                      prepared.parts[prepared.part_of[s]].chunk));
  }
  prepared.generation[s] = -1;
  auto done = stage.bind(prepared.placement(s).plan, std::move(places), arena, store_);
  if (!done) {
    // A half-bound stage cannot be bound again.
    Error e = std::move(done).error();
    std::erase_if(plans_, [&](const auto& p) { return p.get() == &prepared; });
    return fail(std::move(e));
  }
  prepared.generation[s] = arena.generation();
  return {};
}

Status Session::reserve_staging(const Prepared& prepared) {
  // Stages run one after another: one buffer serves all devices.
  Bytes largest = 0;
  for (std::size_t s = 0; s < prepared.stages.size(); ++s) {
    const ComponentId component = prepared.specs[s].component;
    for (std::uint32_t b = 0; b < prepared.stages[s].blocks(); ++b)
      if (store_.needs_staging({component, b})) largest = std::max(largest, store_.layout({component, b}).size);
  }
  staging_on_ = prepared.parts[0].device;
  for (const auto& part : prepared.parts)
    if (memories_[part.device]->staging().size() >= largest) staging_on_ = part.device;
  auto done = memories_[staging_on_]->reserve_staging(largest);
  if (!done && cache_.drop()) done = memories_[staging_on_]->reserve_staging(largest);
  return done;
}

void Session::choose_zone(Prepared& prepared, Prepared::Part& part, const std::vector<bool>& skip) const {
  const DeviceMemory& memory = *memories_[part.device];
  part.placed = part.plan;
  const Bytes zone = memory.zone();
  if (!part.capacity || zone <= part.plan.zone || zone + part.plan.shelves + part.plan.mapped <= *part.capacity) return;
  // A zone that is larger than needed: it shrinks, or residents lie in it. Whatever gives up less; where neither gives anything
  // up, the latter, which asks no driver.
  const auto shrinking = memory.price(need_of(prepared, part, skip));
  if (!settle_in(part.placed, stage_needs(prepared, part), zone, *part.capacity)) return;
  const auto settling = memory.price(need_of(prepared, part, skip));
  if (!settling || (shrinking && *settling > 0 && *shrinking <= *settling)) part.placed = part.plan;
}

Status Session::bind(Prepared& prepared, const CancelToken& cancel, const std::vector<bool>& skip) {
  if (turns_.empty()) {
    // Always in the order of the devices, so that two requests never wait for each other.
    std::vector<std::size_t> devices;
    for (const auto& part : prepared.parts) devices.push_back(part.device);
    std::sort(devices.begin(), devices.end());
    brought_.clear();
    before_.clear();
    for (const std::size_t d : devices) {
      SLUICE_ASSIGN(auto turn, memories_[d]->take_turn(cancel));
      turns_.push_back(std::move(turn));
      before_.push_back({d, claims_[d], memories_[d]->zone()});
    }
    // From here on nothing of these components moves but by this request.
    for (const auto& spec : prepared.specs) holds_.push_back(store_.hold(spec.component));
  }
  for (auto& part : prepared.parts) {
    DeviceMemory& memory = *memories_[part.device];
    choose_zone(prepared, part, skip);
    const auto need = need_of(prepared, part, skip);
    std::vector<BlockId> fresh;
    for (const auto& want : need.wanted)
      if (!memory.resident(want.block)) fresh.push_back(want.block);
    if (auto admitted = memory.admit(need); !admitted) {
      Error e = std::move(admitted).error();
      if (e.code == Code::device_oom && part.chunk > 0)
        e.message = fmt::format("{} needs {} in one buffer, {} prefers at most {}, and it was asked: {}", part.giant,
                                format_bytes(part.chunk), memory.device().info().name,
                                format_bytes(Arena::chunk_size_for(memory.device().info())), e.message);
      return fail(std::move(e));
    }
    for (const BlockId id : fresh) brought_.emplace_back(part.device, id);
    claims_[part.device] = need.zone;
    memory.claim_zone(this, need.zone);
  }
  SLUICE_TRY(reserve_staging(prepared));
  for (std::size_t s = 0; s < prepared.stages.size(); ++s)
    if (skip.empty() || !skip[s]) SLUICE_TRY(bind_stage(prepared, s));
  return {};
}

Result<std::unique_ptr<SweepRunner>> Session::begin(Prepared& prepared, std::size_t s, const CancelToken& cancel, int sweeps) {
  end();
  // A block in the lee of another stage may have come to be held since: it is carried away.
  if (memories_[prepared.parts[prepared.part_of[s]].device]->pinned_below(prepared.stages[s].plan().transient)) {
    std::vector<bool> skip(prepared.stages.size(), false);
    for (std::size_t i = 0; i < s; ++i) skip[i] = true;
    if (auto bound = bind(prepared, cancel, skip); !bound) {
      Error e = std::move(bound).error();
      e.message = fmt::format("a block is held where {} has to work, and there is no other place for it: release it first ({})",
                              prepared.specs[s].name, e.message);
      return fail(std::move(e));
    }
  }
  Stage& stage = prepared.stages[s];
  const Prepared::Part& part = prepared.parts[prepared.part_of[s]];
  DeviceMemory& memory = *memories_[part.device];
  const StagePlan& plan = stage.plan();
  // Only what lies where this stage works goes; everything else stays for the next request.
  memory.clear_zone(0, plan.transient, Leaving::workspace);
  for (std::uint32_t b = 0; b < stage.blocks(); ++b) {
    const WeightPlace& place = stage.places()[b];
    if (place.kind != WeightPlace::Kind::resident || Arena::on_shelf(place.address)) continue;
    const BlockId id{stage.spec().component, b};
    if (memory.resident(id) == place.address) continue;
    memory.give_up(id, Leaving::room);
    memory.clear_zone(place.address, place.address + stage.cost().blocks[b].weights, Leaving::room);
  }
  memory.touch(stage.spec().component);
  // Slots, state and workspace share bytes over time; shared bytes are booked once, in this order.
  Bytes left = plan.transient;
  const auto lend = [&](Use use, Bytes bytes) {
    memory.lend(use, std::min(bytes, left));
    left -= std::min(bytes, left);
  };
  lend(Use::slots, plan.slot_bytes);
  lend(Use::state, plan.state_bytes);
  lend(Use::workspace, left);
  Bytes weights = 0;
  for (const auto& occupant : memory.occupants())
    if (!occupant.booked && !occupant.cache) weights += occupant.size;
  memory.lend(Use::weights, weights);
  running_on_ = part.device;
  return std::make_unique<SweepRunner>(memory, store_, stage, memories_[staging_on_]->staging(),
                                       sweeps > 0 ? sweeps : stage.spec().sweeps, cancel);
}

void Session::end() { memories_[running_on_]->take_back_lent(); }

void Session::finish(bool done) {
  if (turns_.empty()) return;
  end();
  if (!done) {
    for (const auto& [device, id] : brought_) memories_[device]->give_up(id, Leaving::room);
    for (const Before& before : before_) {
      claims_[before.device] = before.claim;
      memories_[before.device]->claim_zone(this, before.claim);
      memories_[before.device]->restore_zone(before.zone);
    }
  }
  brought_.clear();
  for (const Before& before : before_) memories_[before.device]->trim();
  before_.clear();
  holds_.clear();
  turns_.clear();
}

void Session::forget_plans() {
  cache_.drop();
  plans_.clear();
}

void Session::release() {
  finish(false);
  forget_plans();
  for (std::size_t d = 0; d < memories_.size(); ++d) {
    memories_[d]->unuse(this);
    claims_[d] = 0;
    memories_[d]->claim_zone(this, 0);
  }
}

Status Session::place(ComponentId component, std::size_t device) {
  if (device >= memories_.size())
    return fail(Code::invalid_argument, fmt::format("there is no device {}: {} are open", device, memories_.size()));
  const std::size_t from = store_.device_of(component);
  if (from == device) return {};
  std::erase_if(plans_, [&](const auto& p) {
    return std::any_of(p->specs.begin(), p->specs.end(), [&](const auto& spec) { return spec.component == component; });
  });
  SLUICE_TRY(store_.place(component, device));
  memories_[from]->forget(component);
  return {};
}

}  // namespace sluice
