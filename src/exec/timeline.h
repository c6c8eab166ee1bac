#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/plan.h"

namespace sluice {

/// One block of one simulated sweep, in seconds from the start of the first sweep.
struct TimelineEvent {
  int sweep = 0;
  std::uint32_t block = 0;
  double copy_start = 0, copy_end = 0;  ///< equal when nothing is copied
  double compute_start = 0, compute_end = 0;
};

struct Timeline {
  std::vector<TimelineEvent> events;
  double steady_step_s = 0;  ///< length of a sweep once the pattern repeats
  double first_step_s = 0;
};

/// Plays a plan: one link, one compute queue, copies in order, each not before its slot is free. Pure; no sleeping. The first
/// sweep finds every slot free. Never shorter than max(compute, copied bytes ÷ rate). Cost: O(blocks × sweeps).
Timeline simulate(const StageCost& stage, const StagePlan& plan, int sweeps);

/// A stage's times in whole units, so that a repeating pattern repeats exactly and comparisons know no rounding. The unit is
/// the same for every plan of a stage: 2^-40 of its compute and copy times together.
struct Durations {
  double unit_s = 0;
  std::vector<std::int64_t> compute, copy;  ///< per block; copy is 0 for blocks that are never copied
  std::int64_t compute_sum = 0;
};
Durations durations(const StageCost& stage);

/// A streamed block whose slot is held from `ahead` blocks before it (0: only while it computes) to its own end, around the
/// circle.
struct Prefetch {
  std::uint32_t block = 0;
  int ahead = 0;
  bool operator==(const Prefetch&) const = default;
};

/// Units per sweep once the pattern repeats, and not less than the roofline. Copies in sweep order, one per block at most.
/// A pattern that has not repeated after 64 sweeps (link and compute almost equally fast) is averaged over the last 32.
double steady_units(const Durations& durations, std::span<const Prefetch> copies);

}  // namespace sluice
