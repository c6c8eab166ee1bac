#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/plan.h"
#include "exec/stage.h"

namespace sluice {

/// One stage of a request as the whole-request planner sees it.
struct StageNeed {
  StageCost cost;
  ComponentId component = 0;
  std::vector<bool> mappable;  ///< per block: can be used in place from a file mapping, without arena bytes
};

/// A stage's part of a request plan.
struct StagePlacement {
  StagePlan plan;
  std::vector<WeightPlace> places;  ///< per block
};

/// A whole request planned at once. Stages work from address 0 of one zone, one after another; residents of all components lie
/// on shelves, outside of it, as far as there is room, and else in the zone's far part, in the lee of stages that need less
/// than the largest: a stage that works over them takes just the nearest ones' places.
struct RequestPlan {
  std::vector<StagePlacement> stages;
  Bytes zone = 0;      ///< bytes of the zone
  Bytes shelves = 0;   ///< bytes of residents outside of it
  Bytes mapped = 0;    ///< budget bytes of blocks used in place
  Bytes smallest = 0;  ///< smallest budget that works, exact; every larger one works too
  Bytes full = 0;      ///< budget from which every block of every stage is resident

  Bytes taken() const { return zone + shelves + mapped; }
  /// What some stage works over, from the zone's start.
  Bytes workspace() const;
};

/// Plans a request in `budget` bytes (backend account already taken off). The stage that sweeps most chooses first; stages that
/// sweep once stream, and keep between requests what fits beside. Pure. Errors: over_budget with needed = smallest; whatever
/// plan_stage refuses.
Result<RequestPlan> plan_request(std::span<const StageNeed> stages, Bytes budget, const PlanOptions& options);

/// Fits a plan to a zone that is there and larger than the plan's, in `budget` bytes: residents that would have been put on
/// shelves lie in the lee instead, so that nothing has to be freed and allocated. What stays and what flows is not changed.
/// Where chunk ends leave no place for a resident, false, and the plan is as before. Pure.
bool settle_in(RequestPlan& plan, std::span<const StageNeed> stages, Bytes zone, Bytes budget);

}  // namespace sluice
