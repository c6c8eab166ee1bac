#pragma once

#include <cstdint>
#include <vector>

#include "exec/pack.h"
#include "exec/plan.h"
#include "exec/timeline.h"

namespace sluice::planner {

/// A stage as the search sees it: everything per block, sizes rounded up, times in whole units.
struct StageView {
  explicit StageView(const StageCost& stage);
  const StageCost& stage;
  int blocks = 0;
  Durations durations;
  std::vector<Bytes> weights;             ///< aligned; 0 where nothing is copied
  std::vector<Bytes> base;                ///< workspace and live state of the block's busiest tick
  std::vector<std::uint32_t> streamable;  ///< blocks with something to copy, in sweep order
  std::vector<std::uint32_t> spread;      ///< streamable blocks, each prefix spread over the sweep (van der Corput)
  std::vector<std::uint32_t> by_size;     ///< streamable blocks, smallest first, ties as in `spread`
};

/// Which slots are held when: the part of a plan that decides both its bytes and its time.
using Holds = std::vector<Prefetch>;

/// The blocks of `view` that are not resident, each held only while it computes.
Holds held_while_computing(const StageView& view, const std::vector<bool>& resident);

/// Holds every slot from the end of the `in_flight`-th streamed block before it, as far as no block's bytes exceed `cap`: a
/// level at a time, so that short memory costs everyone a little look-ahead rather than one block all of it.
Holds held_ahead(const StageView& view, const std::vector<bool>& resident, int in_flight, Bytes cap);

/// Lets no slot be held over the start of one block, so that the circle becomes a line, which packs to its load (an odd circle
/// of pairs does not). Cut where the least compute time is lost to look ahead in.
Holds cut_open(const StageView& view, Holds holds);

/// Most bytes in use at once, no packing can be smaller.
Bytes load_of(const StageView& view, const Holds& holds);

/// What of `holds` stays streamed once the smallest blocks have become resident as long as they fit beside a transient zone
/// packed to its load: no packing lets more of them be filled. `resident_bytes`: of the residents before. Cost: O(n log n).
Holds filled_to_load(const StageView& view, const Holds& holds, Bytes resident_bytes, Bytes budget);

/// The transient zone, packed: slots (parallel to holds), then workspaces (per block), then states. `limit`: as of
/// pack_extents.
Packing pack_transient(const StageView& view, const Holds& holds, int rounds, Bytes limit = UINT64_MAX);

/// A set of residents to try.
struct ResidentSet {
  std::vector<bool> resident;  ///< per block, streamable blocks only
  Bytes bytes = 0;
};

/// Sets worth trying. They depend on the blocks alone, not on budget or rate, so that a plan found at one budget is found at
/// every larger one. All subsets of up to 12 streamable blocks; else several families, each thinned to at most 64 sizes.
std::vector<ResidentSet> resident_sets(const StageView& view);
/// The first K for every K.
std::vector<ResidentSet> first_k_sets(const StageView& view);

}  // namespace sluice::planner
