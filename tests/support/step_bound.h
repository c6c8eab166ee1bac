#pragma once

#include "exec/plan.h"

namespace sluice::test {

/// What no engine can go below: a lower bound of a steady sweep's length in seconds, in an arena of so many bytes, whatever is
/// kept, evicted, fetched ahead or packed.
///
/// Between the starts of blocks i and j, all blocks in between are computed, and the weights of i to j must have been on the
/// device. At the start of i no more than arena − state − workspace of them was there; the link brought the rest:
///
///     start(j) − start(i) ≥ max(Σ compute(i … j−1), (Σ weights(i … j) − (arena − state(i) − workspace(i))) ÷ rate)
///
/// The bound is the longest chain of such stretches once around. With weights spread evenly it is the roofline; where they
/// are heaped up, as in the middle of a U-Net, it is above it: no memory could hold what would have to be fetched meanwhile.
/// Source: none; from the definitions in exec/plan.h. Cost: O(blocks³).
double step_bound(const StageCost& stage, Bytes arena);

/// Bytes of state that are live while a block runs, by the declarations.
Bytes live_state(const StageCost& stage, std::size_t block);

}  // namespace sluice::test
