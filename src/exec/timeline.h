#pragma once

#include <span>
#include <vector>

#include "exec/plan.h"

namespace sluice {

/// One block of one simulated sweep, in seconds from the start of the first sweep.
struct TimelineEvent {
  int sweep = 0;
  std::uint32_t block = 0;
  double copy_start = 0, copy_end = 0;        ///< equal when nothing is copied
  double compute_start = 0, compute_end = 0;
};

struct Timeline {
  std::vector<TimelineEvent> events;
  double steady_step_s = 0;  ///< length of a sweep once the pattern repeats
  double first_step_s = 0;
};

/// Plays a plan: one link, one compute queue, copies in order, each not before its slot is free. Pure; no sleeping.
/// Never shorter than max(compute, copied bytes ÷ rate). Cost: O(blocks × sweeps).
Timeline simulate(const StageCost& stage, const StagePlan& plan, int sweeps);

}  // namespace sluice
