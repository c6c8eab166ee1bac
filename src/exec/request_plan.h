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

/// A whole request planned at once: all stages share one arena. Transient zones start at address 0; residents of all components
/// lie towards the far end, each at an address of its own, so a stage whose transient zone is larger than what the residents
/// leave takes just the nearest ones' places.
struct RequestPlan {
  std::vector<StagePlacement> stages;
  Bytes arena = 0;     ///< bytes to allocate
  Bytes mapped = 0;    ///< budget bytes of blocks used in place
  Bytes smallest = 0;  ///< smallest budget (arena + mapped) that works, exact; every larger one works too
  Bytes full = 0;      ///< budget from which every block of every stage is resident
};

/// Plans a request in `budget` bytes (backend account already taken off). The stage that sweeps most chooses first; stages that
/// sweep once stream, and keep between requests what fits beside. `arena`: the size of one that exists already (0: none); it is
/// kept when it is large enough and allowed. Pure. Errors: over_budget with needed = smallest; whatever plan_stage refuses.
Result<RequestPlan> plan_request(std::span<const StageNeed> stages, Bytes budget, Bytes arena, const PlanOptions& options);

}  // namespace sluice
