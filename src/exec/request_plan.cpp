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

// Address for each resident block, from the arena's far end, above `floor` and above its own stage's transient zone; what
// found none. Blocks used in place come off the budget, not the arena.
std::optional<Unplaced> place_residents(std::vector<StagePlacement>& stages, std::span<const StageNeed> needs,
                                        const std::vector<std::size_t>& order, Address floor, Bytes arena,
                                        const std::vector<std::vector<bool>>& in_place) {
  FreeRanges free(floor, arena, needs[0].cost.chunk);
  std::optional<Unplaced> unplaced;
  for (const std::size_t s : order) {
    auto& stage = stages[s];
    // The first to be given up lies nearest to the transient zone, so it is placed last.
    for (auto it = stage.plan.give_up.rbegin(); it != stage.plan.give_up.rend(); ++it) {
      const std::uint32_t b = *it;
      auto& place = stage.places[b];
      const Bytes size = size_of(needs[s], b);
      if (in_place[s][b]) {
        place = {WeightPlace::Kind::mapped, 0};
        continue;
      }
      const auto address = free.take_highest(size, stage.plan.transient);
      if (address) {
        place = {WeightPlace::Kind::resident, *address};
      } else {
        if (!unplaced) unplaced = Unplaced{s, 0};
        unplaced->bytes += size;
      }
    }
    if (unplaced) return unplaced;
  }
  return std::nullopt;
}

void place_streamed(StagePlacement& stage, const StageCost& cost) {
  stage.places.assign(cost.blocks.size(), {});
  for (const Copy& c : stage.plan.copies) stage.places[c.block] = {WeightPlace::Kind::streamed, c.address};
}

Bytes transient_of(const std::vector<StagePlacement>& stages) {
  Bytes most = 0;
  for (const auto& s : stages) most = std::max(most, s.plan.transient);
  return most;
}

// Everything stays: the arena it takes and the plan, or nothing when it exceeds `budget`.
Result<RequestPlan> plan_all_resident(std::span<const StageNeed> needs, std::vector<StagePlanner>& planners, Bytes budget,
                                      Bytes arena) {
  RequestPlan plan;
  std::vector<std::vector<bool>> in_place;
  for (std::size_t s = 0; s < needs.size(); ++s) {
    SLUICE_ASSIGN(auto stage, planners[s].plan(UINT64_MAX, {.policy = Policy::all_resident}));
    plan.stages.push_back({std::move(stage), {}});
    place_streamed(plan.stages.back(), needs[s].cost);
    in_place.push_back(needs[s].mappable);
  }
  const auto order = most_sweeps_first(needs);
  const Bytes transient = transient_of(plan.stages);
  Bytes physical = 0;
  for (std::size_t s = 0; s < needs.size(); ++s) {
    for (std::size_t b = 0; b < needs[s].cost.blocks.size(); ++b) {
      (needs[s].mappable[b] ? plan.mapped : physical) += size_of(needs[s], b);
    }
  }
  // Chunk ends can waste a little: grow by what found no place until everything has one.
  plan.arena = std::max(arena, transient + physical);
  while (const auto unplaced = place_residents(plan.stages, needs, order, transient, plan.arena, in_place))
    plan.arena += unplaced->bytes;
  plan.full = plan.arena + plan.mapped;
  if (plan.full > budget) return fail(Code::over_budget, "not everything can stay", plan.full, budget);
  return plan;
}

}  // namespace

Result<RequestPlan> plan_request(std::span<const StageNeed> needs, Bytes budget, Bytes arena, const PlanOptions& options) {
  if (needs.empty()) return fail(Code::invalid_argument, "a request without stages");
  if (options.max_in_flight < 1) return fail(Code::invalid_argument, "max_in_flight must be at least 1");
  const Bytes alignment = needs[0].cost.alignment;
  arena &= ~(alignment - 1);
  std::vector<StagePlanner> planners;
  std::vector<Bytes> least;
  for (const auto& need : needs) {
    SLUICE_ASSIGN(auto planner, StagePlanner::open(need.cost));
    least.push_back(planner.smallest());
    planners.push_back(std::move(planner));
  }
  Bytes smallest = *std::max_element(least.begin(), least.end());
  SLUICE_ASSIGN(auto everything, plan_all_resident(needs, planners, UINT64_MAX, 0));
  const Bytes full = everything.full;
  // Where hardly anything is streamed, keeping it may pack better than streaming it.
  if (options.policy != Policy::all_streamed) smallest = std::min(smallest, full);
  if (budget < smallest) {
    return fail(Code::over_budget, "the largest block with its workspace and state does not fit", smallest, budget);
  }
  if (options.policy == Policy::all_resident || (full <= budget && options.policy != Policy::all_streamed)) {
    if (full > budget) return fail(Code::over_budget, "everything is to stay, and does not fit", full, budget);
    if (arena > everything.arena && arena + everything.mapped <= budget) {
      SLUICE_ASSIGN(everything, plan_all_resident(needs, planners, budget, arena));
      everything.full = full;
    }
    everything.smallest = smallest;
    return everything;
  }

  const auto order = most_sweeps_first(needs);
  // An arena that is there already and large enough is kept, so that residents keep their places from request to request.
  const Bytes total = std::min(budget, std::max(full, arena)) & ~(alignment - 1);
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
    const Bytes must = std::max(transient_of(plan.stages), smallest);
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
    plan.arena = total - plan.mapped;
    const Bytes main_transient = plan.stages[order[0]].plan.transient;
    const auto unplaced = place_residents(plan.stages, needs, order, main_transient, plan.arena, in_place);
    if (!unplaced) return plan;
    limits[unplaced->stage] = rooms[unplaced->stage] - std::min(rooms[unplaced->stage], unplaced->bytes);
  }
}

}  // namespace sluice
