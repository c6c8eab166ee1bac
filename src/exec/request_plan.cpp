#include "exec/request_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "exec/free_ranges.h"

namespace sluice {
namespace {

// A stage that sweeps once copies each block once whatever stays; what it keeps only helps the next request.
bool main_stage(const StageNeed& need) { return need.cost.sweeps > 1; }

Bytes resident_limit(Bytes arena, Bytes reserved, Bytes transient) {
  return arena > reserved + transient ? arena - reserved - transient : 0;
}

/// Bytes a block takes in the arena.
Bytes size_of(const StageNeed& need, std::size_t block) {
  return align_up(need.cost.blocks[block].weights, need.cost.alignment);
}

// Who chooses first.
std::vector<std::size_t> most_sweeps_first(std::span<const StageNeed> needs) {
  std::vector<std::size_t> order(needs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return needs[a].cost.sweeps > needs[b].cost.sweeps; });
  return order;
}

/// A resident that found no place: whose, and the bytes of it and of all after it in its stage.
struct Unplaced {
  std::size_t stage = 0;
  Bytes bytes = 0;
};

// A place for each resident block in `physical` bytes beside what is used in place: shelves first, in the order of who is kept
// longest; the rest, and the bytes that shelves leave, in the zone of at least `zone` bytes (exactly
// so many, or what the stages need, if `fixed`), above the main stage's and above its own stage's transient zone.
std::optional<Unplaced> place_residents(RequestPlan& plan, std::span<const StageNeed> needs,
                                        const std::vector<std::size_t>& order, Bytes zone, bool fixed, Bytes physical,
                                        const std::vector<std::vector<bool>>& in_place) {
  struct Resident {
    std::size_t stage = 0;
    std::uint32_t block = 0;
    Bytes size = 0;
  };
  plan.zone = std::max(plan.workspace(), zone);
  plan.shelves = 0;
  Bytes left = physical - plan.zone;
  std::vector<Resident> lee;
  for (const std::size_t s : order) {
    auto& stage = plan.stages[s];
    // The first to be given up lies nearest to the transient zone, so it is placed last.
    for (auto it = stage.plan.give_up.rbegin(); it != stage.plan.give_up.rend(); ++it) {
      const Bytes size = size_of(needs[s], *it);
      if (in_place[s][*it]) {
        stage.places[*it] = {WeightPlace::Kind::mapped, 0};
      } else if (size <= left) {
        stage.places[*it] = {WeightPlace::Kind::resident, WeightPlace::kAnyShelf};
        left -= size;
        plan.shelves += size;
      } else {
        lee.push_back({s, *it, size});
      }
    }
  }
  if (lee.empty()) return std::nullopt;
  if (!fixed) plan.zone += left;
  FreeRanges free(plan.stages[order[0]].plan.transient, plan.zone, needs[0].cost.chunk);
  std::optional<Unplaced> unplaced;
  for (const auto& [s, block, size] : lee) {
    if (unplaced && unplaced->stage != s) break;
    if (const auto address = free.take_highest(size, plan.stages[s].plan.transient)) {
      plan.stages[s].places[block] = {WeightPlace::Kind::resident, *address};
    } else {
      if (!unplaced) unplaced = Unplaced{s, 0};
      unplaced->bytes += size;
    }
  }
  return unplaced;
}

void place_streamed(StagePlacement& stage, const StageCost& cost) {
  stage.places.assign(cost.blocks.size(), {});
  for (const Copy& c : stage.plan.copies) stage.places[c.block] = {WeightPlace::Kind::streamed, c.address};
}

// Everything stays: what that takes and the plan.
Result<RequestPlan> plan_all_resident(std::span<const StageNeed> needs, std::vector<StagePlanner>& planners) {
  RequestPlan plan;
  for (std::size_t s = 0; s < needs.size(); ++s) {
    SLUICE_ASSIGN(auto stage, planners[s].plan(UINT64_MAX, {.policy = Policy::all_resident}));
    plan.stages.push_back({std::move(stage), {}});
    place_streamed(plan.stages.back(), needs[s].cost);
    for (const std::uint32_t b : plan.stages[s].plan.give_up) {
      const bool mapped = needs[s].mappable[b];
      plan.stages[s].places[b] =
          mapped ? WeightPlace{WeightPlace::Kind::mapped, 0} : WeightPlace{WeightPlace::Kind::resident, WeightPlace::kAnyShelf};
      (mapped ? plan.mapped : plan.shelves) += size_of(needs[s], b);
    }
  }
  plan.zone = plan.workspace();
  plan.full = plan.taken();
  return plan;
}

}  // namespace

Bytes RequestPlan::workspace() const {
  Bytes most = 0;
  for (const auto& s : stages) most = std::max(most, s.plan.transient);
  return most;
}

Result<RequestPlan> plan_request(std::span<const StageNeed> needs, Bytes budget, const PlanOptions& options) {
  if (needs.empty()) return fail(Code::invalid_argument, "a request without stages");
  if (options.max_in_flight < 1) return fail(Code::invalid_argument, "max_in_flight must be at least 1");
  const Bytes alignment = needs[0].cost.alignment;
  std::vector<StagePlanner> planners;
  std::vector<Bytes> least;
  for (const auto& need : needs) {
    SLUICE_ASSIGN(auto planner, StagePlanner::open(need.cost));
    least.push_back(planner.smallest());
    planners.push_back(std::move(planner));
  }
  Bytes smallest = *std::max_element(least.begin(), least.end());
  SLUICE_ASSIGN(auto everything, plan_all_resident(needs, planners));
  const Bytes full = everything.full;
  // Where hardly anything is streamed, keeping it may pack better than streaming it.
  if (options.policy != Policy::all_streamed) smallest = std::min(smallest, full);
  if (budget < smallest) {
    return fail(Code::over_budget, "the largest block with its workspace and state does not fit", smallest, budget);
  }
  if (options.policy == Policy::all_resident || (full <= budget && options.policy != Policy::all_streamed)) {
    if (full > budget) return fail(Code::over_budget, "everything is to stay, and does not fit", full, budget);
    everything.smallest = smallest;
    return everything;
  }

  const auto order = most_sweeps_first(needs);
  const Bytes total = std::min(budget, full) & ~(alignment - 1);
  // What a stage may plan with at most; it shrinks when chunk ends keep its residents from being placed.
  std::vector<Bytes> limits(needs.size(), total);
  for (;;) {
    RequestPlan plan;
    plan.smallest = smallest;
    plan.full = full;
    plan.stages.resize(needs.size());
    std::vector<Bytes> rooms(needs.size(), 0);
    Bytes kept = 0;     // resident bytes chosen so far
    Bytes highest = 0;  // largest transient zone so far
    for (const std::size_t s : order) {
      const StageNeed& need = needs[s];
      const Bytes own = least[s];
      Bytes& room = rooms[s];
      PlanOptions stage_options = options;
      if (main_stage(need) && kept == 0) {
        room = total;
      } else {
        // Beside what is kept already; if that is too little, the nearest residents give way for this stage.
        const Bytes beside = total - std::min(total, kept);
        Bytes others = std::max(highest, own);
        for (const Bytes l : least) others = std::max(others, std::min(l, beside));
        const Bytes spare = resident_limit(total, kept, others);
        room = spare > 0 ? own + spare : std::max(beside, own);
        if (spare == 0) stage_options.policy = Policy::all_streamed;
      }
      // Where nothing less can be placed, no resident stays.
      if (limits[s] < own)
        stage_options.policy = Policy::all_streamed;
      else
        room = std::min(room, limits[s]);
      SLUICE_ASSIGN(auto stage, planners[s].plan(room, stage_options));
      kept += stage.resident_bytes;
      highest = std::max(highest, stage.transient);
      plan.stages[s] = {std::move(stage), {}};
      place_streamed(plan.stages[s], need.cost);
    }
    // In-place blocks leave the arena as long as every stage's transient zone still fits what remains.
    std::vector<std::vector<bool>> in_place;
    const Bytes must = std::max(plan.workspace(), smallest);
    for (std::size_t s = 0; s < needs.size(); ++s) in_place.emplace_back(needs[s].cost.blocks.size(), false);
    for (const std::size_t s : order) {
      for (auto it = plan.stages[s].plan.give_up.rbegin(); it != plan.stages[s].plan.give_up.rend(); ++it) {
        const Bytes size = size_of(needs[s], *it);
        if (needs[s].mappable[*it] && plan.mapped + size + must <= total) {
          in_place[s][*it] = true;
          plan.mapped += size;
        }
      }
    }
    const auto unplaced = place_residents(plan, needs, order, 0, false, total - plan.mapped, in_place);
    if (!unplaced) return plan;
    limits[unplaced->stage] = rooms[unplaced->stage] - std::min(rooms[unplaced->stage], unplaced->bytes);
  }
}

bool settle_in(RequestPlan& plan, std::span<const StageNeed> needs, Bytes zone, Bytes budget) {
  const Bytes total = budget & ~(needs[0].cost.alignment - 1);
  if (zone <= plan.zone || zone + plan.mapped > total) return false;
  std::vector<std::vector<bool>> in_place;
  for (const auto& stage : plan.stages) {
    auto& mapped = in_place.emplace_back();
    for (const WeightPlace& place : stage.places) mapped.push_back(place.kind == WeightPlace::Kind::mapped);
  }
  const Bytes physical = std::min(total - plan.mapped, zone + plan.shelves);
  // As it is, so that it does not grow from request to request; else with what the shelves leave.
  for (const bool fixed : {true, false}) {
    RequestPlan settled = plan;
    if (place_residents(settled, needs, most_sweeps_first(needs), zone, fixed, physical, in_place)) continue;
    plan = std::move(settled);
    return true;
  }
  return false;
}

}  // namespace sluice
