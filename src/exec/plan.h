#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "device/arena.h"

namespace sluice {

/// What one block asks for. Exact: from the real graph placed without memory.
struct BlockCost {
  Bytes weights = 0;     ///< bytes it needs on the device while it runs (its image; 0 when bound to a mapping)
  Bytes workspace = 0;   ///< inner nodes of its largest lane graph; if more than a chunk, laid out for a multiple of the chunk
  Bytes contiguous = 0;  ///< largest piece of the workspace that must lie in one buffer; 0: the whole of it
  double compute_s = 0;  ///< all lanes together
  /// What of the workspace one buffer has to hold.
  Bytes largest_piece() const { return contiguous ? std::min(contiguous, workspace) : workspace; }
};

/// A state tensor of one lane. Ticks count (block × lanes + lane); an input written once per lane lives always.
struct StateCost {
  Bytes size = 0;
  int from = 0, to = 0;  ///< ticks, inclusive; circular as in exec/pack.h
};

/// One stage (a model with its lanes) as the planner sees it.
struct StageCost {
  std::vector<BlockCost> blocks;
  std::vector<StateCost> state;
  int lanes = 1;
  int sweeps = 1;  ///< how many times the stage will sweep (20 steps: 20)
  Bytes alignment = 32;
  Bytes chunk = GiB;
  double link_bytes_per_s = 10e9;
  double link_latency_s = 0;  ///< per block copied
};

enum class Policy {
  interleaved,   ///< the product's own: residents spread so that the link never waits for a slot
  first_k,       ///< keep the first blocks that fit (what others do); for comparison
  all_streamed,  ///< no residents
  all_resident,  ///< refuse unless everything stays
};
std::string_view policy_name(Policy policy);

struct PlanOptions {
  Policy policy = Policy::interleaved;
  int max_in_flight =
      3;  ///< most streamed blocks holding memory at once; 1: no look-ahead. 2 is the norm, dropped to 1 before refusing
};

/// One streamed block: where it lands, and the block after which that place is its own. Its slot is held from there to its own
/// end.
struct Copy {
  std::uint32_t block = 0;
  Address address = 0;   ///< relative to the transient zone's start
  int after_block = -1;  ///< the copy may start when this block of the same sweep (or, if `after_previous_sweep`, of the one
                         ///< before) has ended
  bool after_previous_sweep = false;
};

/// What is decided for a stage. A value: comparable, printable, no handles.
struct StagePlan {
  std::vector<bool> resident;  ///< per block; blocks without weights count as resident
  std::vector<Copy> copies;    ///< streamed blocks in sweep order = copy order
  int in_flight =
      1;  ///< most slots held at once: 1 no look-ahead, 2 one block, ... Where memory is short some copies start later
  std::vector<Address> workspace;  ///< per block, relative to the transient zone
  std::vector<Address> state;      ///< parallel to StageCost::state, relative to the transient zone
  std::vector<std::uint32_t>
      give_up;  ///< resident blocks with bytes in the arena, first to go first; nested over budgets where the residents are
  Bytes transient = 0;       ///< bytes of the transient zone: slots, state and workspace together
  Bytes resident_bytes = 0;  ///< aligned sum over resident blocks
  Bytes slot_bytes = 0, state_bytes = 0, workspace_bytes = 0;  ///< peak of each kind on its own, for reports
  Bytes bytes_per_sweep = 0;                                   ///< over the link in a steady sweep
  double step_s = 0;                                           ///< predicted steady sweep (0 where nothing takes time)
  double roofline_s = 0;                                       ///< max(compute, bytes ÷ rate)
};

/// The smallest arena a stage runs in: everything streamed, nothing looked ahead. Exact to the byte, and every larger one works
/// too.
Bytes smallest_transient(const StageCost& stage);

/// A stage to be planned at several budgets: what does not depend on the budget is worked out once. Borrows the stage. One
/// thread at a time.
class StagePlanner {
 public:
  /// Errors: those of plan_stage that no budget and no option mends.
  static Result<StagePlanner> open(const StageCost& stage);
  StagePlanner(StagePlanner&&) noexcept;
  StagePlanner& operator=(StagePlanner&&) noexcept;
  ~StagePlanner();
  /// As smallest_transient.
  Bytes smallest() const;
  /// As plan_stage.
  Result<StagePlan> plan(Bytes budget, const PlanOptions& options);

 private:
  struct Prepared;
  explicit StagePlanner(std::unique_ptr<Prepared> prepared);
  std::unique_ptr<Prepared> prepared_;
};

/// Chooses what stays and what flows within `budget` bytes: transient + resident_bytes ≤ budget. Whoever places the residents
/// keeps them off chunk ends; where that costs more than is left, the first of `give_up` have to go. Pure: same input, same
/// plan. Interleaved: never worse (in predicted step time) than first-K, within 1 % of trying every subset of ≤ 12 blocks; a
/// larger budget or a faster link never gives a longer step; what is left unused is less than the smallest streamed block.
/// Errors: over_budget with needed = the smallest budget that works (0: none does, because an object is larger than a chunk;
/// the message names the block); invalid_argument for times, rates or ticks that mean nothing.
Result<StagePlan> plan_stage(const StageCost& stage, Bytes budget, const PlanOptions& options = {});

}  // namespace sluice
