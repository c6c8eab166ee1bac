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

/// The section's largest such object, and of those above `limit` the first by name.
Object largest_object(const Stage& stage, const StageNeed& need, Bytes limit) {
  Object largest;
  for (std::size_t b = 0; b < stage.blocks(); ++b) {
    const BlockCost& block = need.cost.blocks[b];
    const Bytes size = std::max(need.mappable[b] ? 0 : block.weights, block.largest_piece());
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
  for (const auto& share : part.shares) components.push_back(specs[share.stage].component);
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

std::optional<Bytes> Session::budget_of(std::size_t device) const {
  return what_if_ && what_if_->device == device ? what_if_->budget : memories_[device]->budget();
}

void Session::measure(const std::vector<StageSpec>& specs, Prepared::Part& part, std::set<BlockId> planned) const {
  const DeviceMemory& memory = *memories_[part.device];
  const auto budget = budget_of(part.device);
  planned.insert(part.fixed.begin(), part.fixed.end());
  part.aside = memory.set_aside(part.backend, planned) + spread_bytes(specs, true)[part.device];
  for (const BlockId id : part.fixed) part.aside += align_up(store_.layout(id).size, memory.device().info().alignment);
  part.capacity = budget;
  if (budget) part.capacity = *budget - std::min(*budget, part.aside);
}

bool Session::outdated(const Prepared& prepared) const {
  const auto moved = [&](const Stage& stage) {
    for (std::uint32_t b = 0; b < stage.blocks(); ++b)
      if (store_.device_of(BlockId{stage.spec().component, b}) != stage.device_of(b)) return true;
    return false;
  };
  if (std::any_of(prepared.stages.begin(), prepared.stages.end(), moved)) return true;
  if (prepared.spread != spread_bytes(prepared.specs, false)) return true;
  return std::any_of(prepared.parts.begin(), prepared.parts.end(), [&](const auto& part) {
    // Blocks that cannot leave and that the plan keeps are the plan's own bytes.
    std::set<BlockId> planned;
    for (std::size_t i = 0; i < part.shares.size(); ++i) {
      const auto& places = part.plan.stages[i].places;
      for (std::uint32_t b = 0; b < places.size(); ++b)
        if (places[b].kind == WeightPlace::Kind::resident || places[b].kind == WeightPlace::Kind::mapped)
          planned.insert({prepared.specs[part.shares[i].stage].component, b});
    }
    Prepared::Part now;
    now.device = part.device;
    now.backend = part.backend;
    now.fixed = part.fixed;
    measure(prepared.specs, now, planned);
    return now.capacity != part.capacity;
  });
}

void Session::check_backends(const Prepared& prepared) const {
  for (const auto& part : prepared.parts) {
    DeviceMemory& memory = *memories_[part.device];
    const auto found = memory.device().backend_now();
    if (found && memory.note_backend(*found))
      options_.log(LogLevel::warning,
                   "{}: the backend holds {} of its own, {} were planned; plans leave room for it from now on",
                   memory.device().info().name, format_bytes(*found), format_bytes(part.backend));
  }
}

std::vector<Site> Session::sites(const Prepared* prepared) const {
  std::vector<Site> sites;
  for (std::size_t d = 0; d < memories_.size(); ++d) sites.push_back({&memories_[d]->device(), &variants_[d], 0});
  if (prepared)
    for (const auto& part : prepared->parts) sites[part.device].chunk = part.chunk;
  return sites;
}

Status Session::divide(Prepared& prepared) {
  for (std::size_t s = 0; s < prepared.stages.size(); ++s) {
    const auto& sections = prepared.stages[s].sections();
    prepared.generation.emplace_back(sections.size(), -1);
    prepared.where.emplace_back();
    for (std::size_t i = 0; i < sections.size(); ++i) {
      auto part = std::find_if(prepared.parts.begin(), prepared.parts.end(),
                               [&](const auto& p) { return p.device == sections[i].device; });
      if (part == prepared.parts.end()) {
        part = prepared.parts.insert(part, Prepared::Part{});
        part->device = sections[i].device;
      }
      prepared.where[s].push_back({static_cast<std::size_t>(part - prepared.parts.begin()), part->shares.size()});
      part->shares.push_back({s, i});
    }
  }
  // What cannot leave, or could not once it is there, stays whatever is planned, and its bytes are not the plan's.
  for (std::size_t s = 0; s < prepared.stages.size(); ++s) {
    const Stage& stage = prepared.stages[s];
    for (std::uint32_t b = 0; b < stage.blocks(); ++b) {
      const BlockId id{prepared.specs[s].component, b};
      if (stage.block_cost(b).weights > 0 && fixed(id))
        prepared.parts[prepared.where[s][stage.section_of(b)].part].fixed.insert(id);
    }
  }
  return enlarge_buffers(prepared);
}

Status Session::plan_part(Prepared& prepared, Prepared::Part& part, Bytes backend) {
  const auto needs = stage_needs(prepared, part);
  part.backend = backend;
  measure(prepared.specs, part, {});
  auto plan = plan_request(needs, part.capacity.value_or(kUnlimited), options_.plan);
  if (!plan) {
    Error e = std::move(plan).error();
    refused_on_ = part.device;
    if (e.code == Code::over_budget && e.needed > 0) {
      e.needed += part.aside;
      e.available = budget_of(part.device).value_or(kUnlimited);
    }
    return fail(std::move(e));
  }
  part.plan = std::move(*plan);
  part.placed = part.plan;
  return {};
}

Result<std::unique_ptr<Prepared>> Session::plan_anew(const std::vector<StageSpec>& specs) {
  SLUICE_TRY(share_rows(specs));
  pending_ = spread_bytes(specs, true);
  auto prepared = std::make_unique<Prepared>();
  prepared->specs = specs;
  prepared->spread = spread_bytes(specs, false);
  std::vector<Bytes> backends;
  SLUICE_ASSIGN(prepared->stages, build_stages(specs, backends));
  SLUICE_TRY(divide(*prepared));
  std::optional<Error> refusal;
  for (auto& part : prepared->parts) {
    const std::size_t first = refused_on_;
    auto planned = plan_part(*prepared, part, backends[part.device]);
    if (planned) continue;
    if (!refusal) {
      refusal = std::move(planned).error();
      if (refusal->code != Code::over_budget) break;
    } else if (planned.error().code == Code::over_budget) {
      refused_on_ = first;
      refusal->message += kAnotherToo;
      break;
    }
  }
  if (refusal) return fail(*std::move(refusal));
  SLUICE_TRY(check_holders(*prepared));
  return prepared;
}

Result<Prepared*> Session::prepare(const std::vector<StageSpec>& specs) {
  SLUICE_TRY(share_rows(specs));
  const auto found =
      std::find_if(plans_.begin(), plans_.end(), [&](const auto& p) { return p->specs == specs && !outdated(*p); });
  if (found != plans_.end()) {
    SLUICE_TRY(check_holders(**found));
    std::rotate(found, found + 1, plans_.end());
    return plans_.back().get();
  }
  auto planned = plan_anew(specs);
  if (!planned) return fail(raise_for_rows(specs, std::move(planned).error()));
  std::unique_ptr<Prepared> prepared = *std::move(planned);
  for (const auto& part : prepared->parts)
    for (const auto& share : part.shares) memories_[part.device]->use(specs[share.stage].component, this);
  ++counters_.plans_built;
  if (plans_.size() >= kPlansKept) plans_.erase(plans_.begin());
  plans_.push_back(std::move(prepared));
  return plans_.back().get();
}

Bytes Session::chunk_for(std::size_t device, Bytes largest) const {
  const Bytes preferred = Arena::chunk_size_for(memories_[device]->device().info());
  return largest <= preferred ? 0 : (largest + preferred - 1) / preferred * preferred;
}

Status Session::enlarge_buffers(Prepared& prepared) {
  bool enlarged = false;
  for (auto& part : prepared.parts) {
    const Bytes preferred = Arena::chunk_size_for(memories_[part.device]->device().info());
    const auto needs = stage_needs(prepared, part);
    Bytes largest = 0;
    for (std::size_t i = 0; i < needs.size(); ++i) {
      const Object object = largest_object(prepared.stages[part.shares[i].stage], needs[i], preferred);
      if (part.giant.empty()) part.giant = object.name;
      largest = std::max(largest, object.size);
    }
    part.chunk = chunk_for(part.device, largest);
    enlarged = enlarged || part.chunk > 0;
  }
  for (std::size_t s = 0; s < prepared.stages.size() && enlarged; ++s) {
    SLUICE_ASSIGN(prepared.stages[s], Stage::build(prepared.specs[s], store_, sites(&prepared)));
  }
  return {};
}

bool Session::fixed(BlockId block) const { return store_.held(block) || store_.has_flag(block, BlockFlag::merged); }

std::vector<StageNeed> Session::stage_needs(const Prepared& prepared, const Prepared::Part& part) const {
  std::vector<StageNeed> needs;
  for (const auto& [stage, section] : part.shares) {
    const ComponentId component = prepared.specs[stage].component;
    StageNeed need{prepared.stages[stage].cost(section), component, {}};
    for (std::uint32_t b = 0; b < need.cost.blocks.size(); ++b) {
      need.mappable.push_back(prepared.stages[stage].section_of(b) == section && store_.mappable({component, b}));
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
  auto order = part.shares;
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return prepared.specs[a.stage].sweeps > prepared.specs[b.stage].sweeps;
  });
  for (const auto& [s, section] : order) {
    const StagePlacement& placement = prepared.placement(s, section);
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
      need.wanted.push_back({id, prepared.stages[s].block_cost(block).weights, where, place.address});
    }
  }
  return need;
}

std::vector<WeightPlace> Session::places_of(const Prepared& prepared, std::size_t s) const {
  const Stage& stage = prepared.stages[s];
  std::vector<WeightPlace> places(stage.blocks());
  for (std::uint32_t b = 0; b < places.size(); ++b) {
    const BlockId id{prepared.specs[s].component, b};
    const Prepared::Part& part = prepared.part(s, stage.section_of(b));
    const auto place = memories_[part.device]->place(id);
    places[b] = prepared.placement(s, stage.section_of(b)).places[b];
    if (part.fixed.contains(id)) {
      places[b] = place ? WeightPlace{WeightPlace::Kind::resident, *place} : WeightPlace{WeightPlace::Kind::mapped, 0};
      continue;
    }
    if (places[b].kind != WeightPlace::Kind::resident) continue;
    // A block that the plan puts into the zone may be on a shelf already, and has a place there that is as good.
    if (places[b].any_shelf() || (place && Arena::on_shelf(*place))) places[b].address = place.value_or(places[b].address);
  }
  return places;
}

Status Session::bind_stage(Prepared& prepared, std::size_t s) {
  std::vector<int> generation;
  std::vector<Stage::Ground> grounds;
  for (std::size_t i = 0; i < prepared.stages[s].sections().size(); ++i) {
    const Arena& arena = memories_[prepared.part(s, i).device]->arena();
    generation.push_back(arena.generation());
    grounds.push_back({&prepared.placement(s, i).plan, &arena, &memories_[prepared.part(s, i).device]->device()});
  }
  generation.push_back(store_.split_generation(prepared.specs[s].component));
  auto places = places_of(prepared, s);
  Stage& stage = prepared.stages[s];
  if (stage.bound()) {
    if (prepared.generation[s] == generation && stage.places() == places) return {};
    // Tensors are bound once: what lies elsewhere now gets new ones.
    SLUICE_ASSIGN(stage, Stage::build(prepared.specs[s], store_, sites(&prepared)));
  }
  prepared.generation[s].assign(generation.size(), -1);
  auto done = stage.bind(grounds, std::move(places), store_);
  if (!done) {
    // A half-bound stage cannot be bound again.
    Error e = std::move(done).error();
    std::erase_if(plans_, [&](const auto& p) { return p.get() == &prepared; });
    return fail(std::move(e));
  }
  prepared.generation[s] = std::move(generation);
  return {};
}

Status Session::reserve_staging(const Prepared& prepared) {
  // Stages run one after another, so one buffer serves all that run on one device each, on whatever device; the sections of a
  // stage run beside each other and need one each.
  const auto reserve = [&]() -> Status {
    Bytes crossing = 0, shared = 0;
    std::vector<Bytes> own(memories_.size(), 0);
    for (const Stage& stage : prepared.stages)
      for (std::uint32_t b = 0; b < stage.blocks(); ++b) {
        const BlockId id{stage.spec().component, b};
        Bytes& largest = stage.sections().size() > 1 ? own[stage.device_of(b)] : shared;
        if (store_.needs_staging(id)) largest = std::max(largest, store_.layout(id).size);
      }
    for (const auto& part : prepared.parts) SLUICE_TRY(memories_[part.device]->reserve_staging(own[part.device]));
    staging_on_ = prepared.parts[0].device;
    for (const auto& part : prepared.parts)
      if (memories_[part.device]->staging().size() >= shared) staging_on_ = part.device;
    SLUICE_TRY(memories_[staging_on_]->reserve_staging(shared));
    for (const Stage& stage : prepared.stages) crossing = std::max(crossing, stage.largest_crossing());
    if (crossing <= crossing_lease_.size()) return {};
    crossing_ = {};
    crossing_lease_ = {};
    SLUICE_ASSIGN(crossing_lease_, store_.host_ledger().reserve(Use::staging, crossing));
    auto piece = store_.allocate_host(prepared.parts[0].device, Use::staging, crossing);
    if (!piece) {
      crossing_lease_ = {};
      return fail(std::move(piece).error());
    }
    crossing_ = *std::move(piece);
    return {};
  };
  auto done = reserve();
  if (!done && cache_.drop()) done = reserve();
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
  std::vector<StageSpec> running;
  for (std::size_t s = 0; s < prepared.specs.size(); ++s)
    if (skip.empty() || !skip[s]) running.push_back(prepared.specs[s]);
  const auto to_load = components_with_rows(running, false);
  if (turns_.empty()) {
    // Always in the order of the devices, so that two requests never wait for each other.
    std::set<std::size_t> devices;
    for (const auto& part : prepared.parts) devices.insert(part.device);
    for (const ComponentId component : to_load)
      for (const std::size_t d : store_.devices_of(component)) devices.insert(d);
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
  SLUICE_TRY(load_rows(to_load, cancel));
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
  const auto in_the_way = [&] {
    for (std::size_t i = 0; i < prepared.stages[s].sections().size(); ++i)
      if (memories_[prepared.part(s, i).device]->pinned_below(prepared.stages[s].plan(i).transient)) return true;
    return false;
  };
  if (in_the_way()) {
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
  std::vector<SweepRunner::Ground> grounds;
  for (std::size_t i = 0; i < stage.sections().size(); ++i) {
    DeviceMemory& memory = *memories_[stage.sections()[i].device];
    ready(stage, i);
    grounds.push_back({&memory, stage.sections().size() > 1 ? memory.staging() : memories_[staging_on_]->staging()});
  }
  const auto crossing = crossing_.buffer ? crossing_.buffer->bytes() : std::span<std::byte>{};
  return std::make_unique<SweepRunner>(grounds, store_, stage, crossing, sweeps > 0 ? sweeps : stage.spec().sweeps, cancel);
}

void Session::ready(const Stage& stage, std::size_t section) {
  const std::size_t device = stage.sections()[section].device;
  DeviceMemory& memory = *memories_[device];
  const StagePlan& plan = stage.plan(section);
  // Only what lies where this stage works goes; everything else stays for the next request.
  memory.clear_zone(0, plan.transient, Leaving::workspace);
  for (std::uint32_t b = 0; b < stage.blocks(); ++b) {
    const WeightPlace& place = stage.places()[b];
    if (stage.section_of(b) != section || place.kind != WeightPlace::Kind::resident || Arena::on_shelf(place.address)) continue;
    const BlockId id{stage.spec().component, b};
    if (memory.resident(id) == place.address) continue;
    memory.give_up(id, Leaving::room);
    memory.clear_zone(place.address, place.address + stage.block_cost(b).weights, Leaving::room);
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
  running_on_.push_back(device);
}

void Session::end() {
  for (const std::size_t device : running_on_) memories_[device]->take_back_lent();
  running_on_.clear();
}

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
  for (const ComponentId component : spread_by_us_)
    if (!done) store_.unload_split(component);
  spread_by_us_.clear();
  brought_.clear();
  for (const Before& before : before_) memories_[before.device]->trim();
  before_.clear();
  holds_.clear();
  turns_.clear();
}

void Session::forget_plans() {
  cache_.drop();
  plans_.clear();
  crossing_ = {};
  crossing_lease_ = {};
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
  const auto from = store_.devices_of(component);
  if (from == std::vector{device}) return {};
  std::erase_if(plans_, [&](const auto& p) {
    return std::any_of(p->specs.begin(), p->specs.end(), [&](const auto& spec) { return spec.component == component; });
  });
  SLUICE_TRY(store_.place(component, device));
  dealt_.erase(component);
  for (const std::size_t d : from)
    if (d != device) memories_[d]->forget(component);
  return {};
}

}  // namespace sluice
