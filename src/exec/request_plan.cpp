#include "exec/request_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "exec/free_ranges.h"

namespace sluice {
namespace {

// A stage that sweeps once copies each block once whatever stays; what it keeps only helps the next request.
bool main_stage(const StageNeed& need) { return need.cost.sweeps > 1; }

Bytes resident_limit(Bytes arena, Bytes reserved, Bytes transient) {
  return arena > reserved + transient ? arena - reserved - transient : 0;
}

// Address for each resident block, from the arena's far end; false when they do not all fit above `floor`.
// Blocks used in place come off the budget, not the arena.
bool place_residents(std::vector<StagePlacement>& stages, std::span<const StageNeed> needs,
                     const std::vector<std::size_t>& order, Address floor, Bytes arena,
                     std::vector<std::vector<bool>>& in_place) {
  FreeRanges free(floor, arena, needs[0].cost.chunk);
  for (const std::size_t s : order) {
    auto& stage = stages[s];
    // The first to be given up lies nearest to the transient zone, so it is placed last.
    for (auto it = stage.plan.give_up.rbegin(); it != stage.plan.give_up.rend(); ++it) {
      const std::uint32_t b = *it;
      auto& place = stage.places[b];
      const Bytes size = needs[s].cost.blocks[b].weights;
      if (size == 0) continue;
      if (in_place[s][b]) {
        place = {WeightPlace::Kind::mapped, 0};
        continue;
      }
      const auto address = free.take_highest(size);
      if (!address) return false;
      place = {WeightPlace::Kind::resident, *address};
    }
  }
  return true;
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
Result<RequestPlan> plan_all_resident(std::span<const StageNeed> needs, Bytes budget, Bytes arena) {
  RequestPlan plan;
  std::vector<std::vector<bool>> in_place;
  for (const auto& need : needs) {
    PlanOptions options{.policy = Policy::all_resident};
    // Enough for any transient zone: a stage alone never needs more than the sum of its parts.
    auto stage = plan_stage(need.cost, Bytes{1} << 60, options);
    if (!stage) return fail(std::move(stage).error());
    plan.stages.push_back({std::move(*stage), {}});
    place_streamed(plan.stages.back(), need.cost);
    in_place.push_back(need.mappable);
  }
  std::vector<std::size_t> order(needs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return needs[a].cost.sweeps > needs[b].cost.sweeps; });
  const Bytes transient = transient_of(plan.stages);
  Bytes physical = 0;
  for (std::size_t s = 0; s < needs.size(); ++s) {
    for (std::size_t b = 0; b < needs[s].cost.blocks.size(); ++b) {
      (needs[s].mappable[b] ? plan.mapped : physical) += needs[s].cost.blocks[b].weights;
    }
  }
  // Chunk ends can waste a little: grow until all is placed.
  for (Bytes size = std::max(arena, transient + physical);; size += std::max<Bytes>(size / 64, needs[0].cost.alignment)) {
    size = align_up(size, needs[0].cost.alignment);
    if (place_residents(plan.stages, needs, order, transient, size, in_place)) {
      plan.arena = size;
      break;
    }
  }
  plan.full = plan.arena + plan.mapped;
  if (plan.full > budget) return fail(Code::over_budget, "not everything can stay", plan.full, budget);
  return plan;
}

}  // namespace

Bytes smallest_budget(std::span<const StageNeed> stages) {
  Bytes most = 0;
  for (const auto& s : stages) most = std::max(most, smallest_transient(s.cost));
  return most;
}

Result<RequestPlan> plan_request(std::span<const StageNeed> needs, Bytes budget, Bytes arena, const PlanOptions& options) {
  if (needs.empty()) return fail(Code::invalid_argument, "a request without stages");
  const Bytes alignment = needs[0].cost.alignment;
  // First, because it also finds what no budget could mend.
  auto everything = plan_all_resident(needs, Bytes{1} << 62, 0);
  if (!everything) return fail(std::move(everything).error());
  std::vector<Bytes> least;
  for (const auto& n : needs) least.push_back(smallest_transient(n.cost));
  const Bytes smallest = *std::max_element(least.begin(), least.end());
  if (budget < smallest) {
    return fail(Code::over_budget, "the largest block with its workspace and state does not fit", smallest, budget);
  }
  const Bytes full = everything->full;
  if (options.policy == Policy::all_resident || (full <= budget && options.policy != Policy::all_streamed)) {
    if (full > budget) return fail(Code::over_budget, "everything is to stay, and does not fit", full, budget);
    if (arena > everything->arena && arena + everything->mapped <= budget) {
      everything = plan_all_resident(needs, budget, arena);
      if (!everything) return fail(std::move(everything).error());
      everything->full = full;
    }
    everything->smallest = smallest;
    return everything;
  }

  std::vector<std::size_t> order(needs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return needs[a].cost.sweeps > needs[b].cost.sweeps; });

  // An arena that is there already and large enough is kept, so that residents keep their places from request to request.
  const Bytes total = std::min(budget, std::max(full, arena)) & ~(alignment - 1);
  // `allow` is what stages may plan with; it shrinks when chunk ends keep residents from being placed.
  for (Bytes allow = total;;) {
    RequestPlan plan;
    plan.smallest = smallest;
    plan.full = full;
    plan.stages.resize(needs.size());
    Bytes kept = 0;     // resident bytes chosen so far
    Bytes highest = 0;  // largest transient zone so far
    for (const std::size_t s : order) {
      const StageNeed& need = needs[s];
      const Bytes own = least[s];
      Bytes room = 0;
      PlanOptions stage_options = options;
      if (main_stage(need) && kept == 0) {
        room = allow;
      } else {
        // Beside what is kept already; if that is too little, the nearest residents give way for this stage.
        const Bytes beside = allow - std::min(allow, kept);
        Bytes others = std::max(highest, own);
        for (const Bytes l : least) others = std::max(others, std::min(l, beside));
        const Bytes spare = resident_limit(allow, kept, others);
        if (spare > 0) {
          room = own + spare;
        } else {
          room = std::max(beside, own);
          stage_options.policy = Policy::all_streamed;
        }
      }
      auto stage = plan_stage(need.cost, room, stage_options);
      if (!stage) return fail(std::move(stage).error());
      kept += stage->resident_bytes;
      highest = std::max(highest, stage->transient);
      plan.stages[s] = {std::move(*stage), {}};
      place_streamed(plan.stages[s], need.cost);
    }
    // In-place blocks leave the arena as long as every stage's transient zone still fits what remains.
    std::vector<std::vector<bool>> in_place;
    const Bytes must = std::max(transient_of(plan.stages), smallest);
    for (std::size_t s = 0; s < needs.size(); ++s) in_place.emplace_back(needs[s].cost.blocks.size(), false);
    for (const std::size_t s : order) {
      for (auto it = plan.stages[s].plan.give_up.rbegin(); it != plan.stages[s].plan.give_up.rend(); ++it) {
        const Bytes size = needs[s].cost.blocks[*it].weights;
        if (needs[s].mappable[*it] && plan.mapped + size + must <= total) {
          in_place[s][*it] = true;
          plan.mapped += size;
        }
      }
    }
    plan.arena = total - plan.mapped;
    const Bytes main_transient = plan.stages[order[0]].plan.transient;
    if (place_residents(plan.stages, needs, order, main_transient, plan.arena, in_place)) return plan;
    if (allow <= smallest) return fail(Code::over_budget, "no placement was found", smallest, budget);
    allow = std::max(smallest, allow - std::max<Bytes>(alignment, allow / 64));
  }
}

}  // namespace sluice
