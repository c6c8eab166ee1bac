#include "exec/session.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {
namespace {
// Two prompt lengths and two sizes at hand; more are rebuilt (milliseconds).
constexpr std::size_t kCachedPlans = 4;

// The planner refuses what no buffer can hold by number; here blocks have names.
Status check_buffers(const Stage& stage, const StageNeed& need, const std::string& device) {
  for (std::size_t b = 0; b < stage.blocks(); ++b) {
    const BlockCost& block = need.cost.blocks[b];
    const Bytes workspace = block.contiguous ? std::min(block.contiguous, block.workspace) : block.workspace;
    const Bytes largest = std::max(need.mappable[b] ? 0 : block.weights, workspace);
    if (need.cost.chunk > 0 && largest > need.cost.chunk)
      return fail(Code::over_budget,
                  fmt::format("{}: block '{}' needs {} in one buffer, the largest buffer of {} is {}", stage.spec().name,
                              stage.model().blocks[b].name, format_bytes(largest), device, format_bytes(need.cost.chunk)),
                  0, need.cost.chunk);
  }
  return {};
}
}  // namespace

Session::Session(Device& device, WeightStore& store, SessionOptions options)
    : device_(device),
      store_(store),
      options_(std::move(options)),
      variants_(options_.variants.value_or(variants_for(ggml_backend_buft_get_device(device.buffer_type())))),
      share_(device.ledger(), options_.budget) {}

Session::~Session() { release(); }

void Session::for_each_block(const std::function<void(BlockId)>& visit) const {
  for (std::uint32_t c = 0; c < store_.components(); ++c) {
    for (std::uint32_t b = 0; b < store_.model(c).blocks.size(); ++b) visit({c, b});
  }
}

void Session::set_budget(std::optional<Bytes> budget) {
  if (budget == options_.budget) return;
  release();
  options_.budget = budget;
  share_.set_limit(budget);
}

void Session::release() {
  end();
  cache_.clear();
  for_each_block([&](BlockId id) { store_.give_up(id); });
  arena_.reset();
  staging_.reset();
  staging_lease_ = {};
}

Result<Prepared*> Session::prepare(const std::vector<StageSpec>& specs) {
  const auto found = std::find_if(cache_.begin(), cache_.end(), [&](const auto& p) { return p->specs == specs; });
  if (found != cache_.end()) {
    std::rotate(found, found + 1, cache_.end());
    return cache_.back().get();
  }
  auto prepared = std::make_unique<Prepared>();
  prepared->specs = specs;
  std::vector<StageNeed> needs;
  std::vector<ggml_cgraph*> graphs;
  for (const auto& spec : specs) {
    auto stage = Stage::build(spec, store_, device_, variants_);
    if (!stage) return fail(std::move(stage).error());
    StageNeed need{stage->cost(), spec.component, {}};
    for (std::uint32_t b = 0; b < stage->blocks(); ++b) need.mappable.push_back(store_.mappable({spec.component, b}));
    SLUICE_TRY(check_buffers(*stage, need, device_.info().name));
    needs.push_back(std::move(need));
    prepared->holds.push_back(store_.hold(spec.component));
    prepared->stages.push_back(std::move(*stage));
    for (ggml_cgraph* g : prepared->stages.back().distinct_graphs()) graphs.push_back(g);
  }
  SLUICE_ASSIGN(prepared->backend, device_.measure_backend(graphs));
  const Bytes unlimited = Bytes{1} << 60;
  const Bytes budget = options_.budget.value_or(unlimited);
  const Bytes rest = budget - std::min(budget, prepared->backend);
  auto plan = plan_request(needs, rest, arena_ ? arena_->size() : 0, options_.plan);
  if (!plan) {
    Error e = std::move(plan).error();
    if (e.code == Code::over_budget && e.needed > 0) {
      e.needed += prepared->backend;
      e.available = budget;
    }
    return fail(std::move(e));
  }
  prepared->plan = std::move(*plan);
  ++counters_.plans_built;
  if (cache_.size() >= kCachedPlans) cache_.erase(cache_.begin());
  cache_.push_back(std::move(prepared));
  return cache_.back().get();
}

Status Session::bind(Prepared& prepared) {
  if (prepared.arena_seen != 0) return {};
  if (!arena_ || arena_->size() < prepared.plan.arena ||
      (options_.budget && arena_->size() + prepared.plan.mapped + prepared.backend > *options_.budget)) {
    if (arena_)
      options_.log(LogLevel::info, "arena: {} becomes {}", format_bytes(arena_->size()), format_bytes(prepared.plan.arena));
    // Stages bound in the old arena go with it.
    std::erase_if(cache_, [&](const auto& p) { return p.get() != &prepared; });
    for_each_block([&](BlockId id) { store_.give_up(id); });
    arena_.reset();
    SLUICE_TRY(share_.set_backend(prepared.backend));
    auto arena = Arena::open(device_, prepared.plan.arena);
    if (!arena) return fail(std::move(arena).error());
    arena_.emplace(std::move(*arena));
    ++counters_.arenas_opened;
  }
  // What another plan uses in place is booked; this plan may need those bytes for its arena, so that plan is made again when it
  // is due.
  if (std::any_of(cache_.begin(), cache_.end(),
                  [&](const auto& p) { return p.get() != &prepared && p->arena_seen != 0 && p->plan.mapped > 0; })) {
    std::erase_if(cache_, [&](const auto& p) { return p.get() != &prepared && p->plan.mapped > 0; });
    for_each_block([&](BlockId id) {
      if (!store_.resident(id)) store_.give_up(id);
    });
  }
  SLUICE_TRY(share_.set_backend(std::max(share_.backend(), prepared.backend)));
  // Staging for images that are put together at each use, as large as the largest of any registered component. Before
  // binding: a request that was refused its staging is not bound, and may try again.
  Bytes largest = 0;
  for_each_block([&](BlockId id) {
    if (store_.needs_staging(id)) largest = std::max(largest, store_.layout(id).size);
  });
  if (largest > 0 && (!staging_ || staging_->bytes().size() < largest)) {
    staging_.reset();
    staging_lease_ = {};
    SLUICE_ASSIGN(staging_lease_, store_.host_ledger().reserve(Use::staging, largest));
    SLUICE_ASSIGN(staging_, device_.allocate_host(largest));
  }
  for (std::size_t s = 0; s < prepared.stages.size(); ++s) {
    auto done = prepared.stages[s].bind(prepared.plan.stages[s].plan, prepared.plan.stages[s].places, *arena_, store_);
    if (!done) {
      // A half-bound request cannot be bound again.
      Error e = std::move(done).error();
      std::erase_if(cache_, [&](const auto& p) { return p.get() == &prepared; });
      return fail(std::move(e));
    }
  }
  prepared.arena_seen = arena_->size();
  return {};
}

void Session::lend(const Prepared& prepared, std::size_t s) {
  const StagePlan& plan = prepared.plan.stages[s].plan;
  Bytes weights = 0;
  for (std::size_t i = 0; i < prepared.stages.size(); ++i) {
    const auto& places = prepared.plan.stages[i].places;
    for (std::size_t b = 0; b < places.size(); ++b) {
      if (places[b].kind == WeightPlace::Kind::resident) weights += prepared.stages[i].cost().blocks[b].weights;
    }
  }
  // Slots, state and workspace share bytes over time; shared bytes are booked once, in this order.
  Bytes left = plan.transient;
  const auto take = [&](Use use, Bytes bytes) {
    const Bytes n = std::min(bytes, left);
    left -= n;
    if (n > 0) lent_.push_back(arena_->lease().lend(use, std::min(n, arena_->lease().size())));
  };
  take(Use::slots, plan.slot_bytes);
  take(Use::state, plan.state_bytes);
  take(Use::workspace, left);
  const Bytes kept = std::min(weights, arena_->lease().size());
  if (kept > 0) lent_.push_back(arena_->lease().lend(Use::weights, kept));
}

Result<std::unique_ptr<SweepRunner>> Session::begin(Prepared& prepared, std::size_t s, const CancelToken& cancel) {
  end();
  Stage& stage = prepared.stages[s];
  const StagePlacement& placement = prepared.plan.stages[s];
  const auto give_up = [&](BlockId id, const char* why) {
    options_.log(LogLevel::debug, "give up {} of {}: {}", store_.model(id.component).blocks[id.block].name,
                 store_.model(id.component).name, why);
    counters_.given_up += store_.layout(id).size;
    store_.give_up(id);
  };
  // Only what lies where this stage works goes; everything else stays for the next request.
  for (const BlockId id : store_.residents_in(0, placement.plan.transient)) give_up(id, "its place becomes workspace");
  for (std::uint32_t b = 0; b < placement.places.size(); ++b) {
    const WeightPlace& place = placement.places[b];
    const BlockId id{stage.spec().component, b};
    const auto at = store_.resident(id);
    if (at && (place.kind != WeightPlace::Kind::resident || *at != place.address)) give_up(id, "the plan places it elsewhere");
    if (place.kind != WeightPlace::Kind::resident || store_.resident(id)) continue;
    for (const BlockId other : store_.residents_in(place.address, place.address + store_.layout(id).size))
      give_up(other, "its place is taken");
  }
  lend(prepared, s);
  return std::make_unique<SweepRunner>(device_, store_, stage, staging_ ? staging_->bytes() : std::span<std::byte>{},
                                       stage.spec().sweeps, cancel);
}

void Session::end() {
  if (arena_) {
    for (auto& lease : lent_) arena_->lease().take_back(std::move(lease));
  }
  lent_.clear();
}

}  // namespace sluice
