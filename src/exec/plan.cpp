#include "exec/plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>

#include "exec/planner.h"

namespace sluice {
namespace {

using namespace planner;

/// Improvement rounds of the packer: many for S, which users see as a promise, and for the candidates of small stages that do
/// not fit at once; few where hundreds of candidates with hundreds of objects are packed.
constexpr int kThorough = 200, kCareful = 100, kModerate = 40, kQuick = 2;
constexpr int kSmallStage = 12, kMiddlingStage = 16;

/// A candidate that fits: residents, slots and where everything lies.
struct Candidate {
  std::vector<bool> resident;
  Bytes resident_bytes = 0;
  Holds holds;              ///< of the streamed blocks
  Packing packing;          ///< offsets of slots (parallel to holds), workspaces, states
  double units = 0;         ///< predicted steady sweep
  std::int64_t copied = 0;  ///< copy units per sweep
};

std::int64_t copy_units(const StageView& view, const Holds& holds) {
  std::int64_t sum = 0;
  for (const auto& hold : holds) sum += view.durations.copy[hold.block];
  return sum;
}

/// Makes the smallest streamed blocks resident as long as that fits, everything else staying where it is. What is unused
/// afterwards is less than the smallest streamed block; and the more budget, the more blocks, so the step never grows with the
/// budget.
void fill_up(const StageView& view, Bytes budget, Candidate& c) {
  // The transient zone ends with the highest object that is still there.
  struct End {
    Bytes at;
    std::size_t object;
  };
  const auto alignment = view.stage.alignment;
  std::vector<End> ends;
  const auto add = [&](std::size_t object, Bytes bytes) {
    if (bytes > 0) ends.push_back({c.packing.offsets[object] + align_up(bytes, alignment), object});
  };
  std::size_t object = 0;
  std::vector<std::size_t> slot_of(static_cast<std::size_t>(view.blocks), SIZE_MAX);
  for (const auto& hold : c.holds) {
    slot_of[hold.block] = object;
    add(object++, view.weights[hold.block]);
  }
  for (const auto& block : view.stage.blocks) add(object++, block.workspace);
  for (const auto& state : view.stage.state) add(object++, state.size);
  std::sort(ends.begin(), ends.end(), [](auto& a, auto& b) { return a.at > b.at; });

  std::vector<bool> gone(object, false);
  std::size_t top = 0;
  for (const auto block : view.by_size) {
    if (c.resident[block]) continue;
    gone[slot_of[block]] = true;
    std::size_t next = top;
    while (next < ends.size() && gone[ends[next].object]) ++next;
    const Bytes transient = next < ends.size() ? ends[next].at : 0;
    const Bytes resident_bytes = c.resident_bytes + view.weights[block];
    if (transient + resident_bytes > budget) {
      gone[slot_of[block]] = false;
      break;
    }
    top = next;
    c.packing.size = transient;
    c.resident[block] = true;
    c.resident_bytes = resident_bytes;
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < object; ++i)
    if (!gone[i]) c.packing.offsets[kept++] = c.packing.offsets[i];
  c.packing.offsets.resize(kept);
  std::erase_if(c.holds, [&](auto& hold) { return c.resident[hold.block]; });
}

class Search {
 public:
  Search(const StageView& view, Bytes budget, const PlanOptions& options) : view_(view), budget_(budget), options_(options) {}

  /// Everything streamed, packed as `smallest_transient` packs it: fits whenever anything does.
  void start(Packing smallest) {
    Candidate c;
    c.resident.assign(static_cast<std::size_t>(view_.blocks), false);
    c.holds = held_while_computing(view_, c.resident);
    c.packing = std::move(smallest);
    finish(std::move(c));
  }

  /// Best first: every set has a bound, every look-ahead of a set that could be best has one of its own, and only what has the
  /// least bound of all is packed. It ends when nothing is left that could beat the best.
  void try_sets(const std::vector<ResidentSet>& sets) {
    const Bytes busiest = *std::max_element(view_.base.begin(), view_.base.end());
    for (std::uint32_t i = 0; i < sets.size(); ++i) {
      const auto& set = sets[i];
      Bytes load = 0;
      std::int64_t copied = 0;
      for (int b = 0; b < view_.blocks; ++b) {
        load = std::max(load, view_.base[b] + (set.resident[b] ? 0 : view_.weights[b]));
        if (!set.resident[b]) copied += view_.durations.copy[b];
      }
      if (set.bytes + load > budget_) continue;
      // Filled as if nothing but the busiest block's own bytes were in the way.
      Bytes bytes = set.bytes;
      for (const auto block : view_.by_size) {
        if (!fills() || bytes + view_.weights[block] + busiest > budget_) break;
        if (set.resident[block]) continue;
        bytes += view_.weights[block];
        copied -= view_.durations.copy[block];
      }
      open_.push_back({static_cast<double>(std::max(copied, view_.durations.compute_sum)), copied, i, kSet, {}});
    }
    std::make_heap(open_.begin(), open_.end(), later);
    std::vector<std::uint32_t> expanded;  // families meet, and twins have the same bound: those of the last one
    std::int64_t last_copied = -1;
    while (!open_.empty()) {
      std::pop_heap(open_.begin(), open_.end(), later);
      const Node node = std::move(open_.back());
      open_.pop_back();
      // Ties go to the first found, which has about the most residents.
      if (best_ && node.bound >= best_->units) break;
      const auto& set = sets[node.set];
      if (node.kind == kTight) {
        expand(set, node.set);
        continue;
      }
      if (node.kind != kSet) {
        if (!try_holds(set, node.holds) && node.kind == kCircle) open(set, node.set, kLine, cut_open(view_, node.holds));
        continue;
      }
      if (node.copied != last_copied) expanded.clear();
      last_copied = node.copied;
      const bool twin = std::any_of(expanded.begin(), expanded.end(), [&](auto i) { return sets[i].resident == set.resident; });
      if (twin) continue;
      expanded.push_back(node.set);
      open_.push_back({tight_bound(set), node.copied, node.set, kTight, {}});
      std::push_heap(open_.begin(), open_.end(), later);
    }
  }

  const std::optional<Candidate>& best() const { return best_; }

 private:
  bool fills() const { return options_.policy == Policy::interleaved; }

  /// The most that filling up can add to a set: as if the slots took no more than the busiest block's own.
  std::vector<std::uint32_t> could_fill(const ResidentSet& set) const {
    std::vector<std::uint32_t> left;
    if (!fills()) return left;
    for (const auto block : view_.by_size)
      if (!set.resident[block]) left.push_back(block);
    // floor[i]: bytes of the busiest block while the blocks from the i-th on are streamed.
    std::vector<Bytes> floor(left.size() + 1, *std::max_element(view_.base.begin(), view_.base.end()));
    for (std::size_t i = left.size(); i-- > 0;) floor[i] = std::max(floor[i + 1], view_.base[left[i]] + view_.weights[left[i]]);
    Bytes bytes = set.bytes;
    std::size_t count = 0;
    while (count < left.size() && bytes + view_.weights[left[count]] + floor[count + 1] <= budget_)
      bytes += view_.weights[left[count++]];
    left.resize(count);
    return left;
  }

  /// What is still to be tried: a set with its roofline, a set with the time that full look-ahead would take, or slots of a set
  /// held around the circle or on a line.
  static constexpr std::uint32_t kLine = 0, kCircle = 1, kTight = 2, kSet = 3;
  struct Node {
    double bound;
    std::int64_t copied;
    std::uint32_t set, kind;
    Holds holds;
  };
  static bool later(const Node& a, const Node& b) {
    // Between equals what is nearest to a packing: if it fits, the others need not be looked at.
    return std::tie(a.bound, a.kind, a.copied, a.set) > std::tie(b.bound, b.kind, b.copied, b.set);
  }

  /// Adds slots of a set to what is to be tried, if they can still win packed to their load and filled up as far as that lets
  /// them.
  void open(const ResidentSet& set, std::uint32_t index, std::uint32_t kind, Holds holds) {
    const Holds left = fills() ? filled_to_load(view_, holds, set.bytes, budget_) : holds;
    const std::int64_t copied = copy_units(view_, left);
    if (best_ && static_cast<double>(copied) >= best_->units) return;
    const double bound = steady_units(view_.durations, left);
    if (best_ && bound >= best_->units) return;
    open_.push_back({bound, copied, index, kind, std::move(holds)});
    std::push_heap(open_.begin(), open_.end(), later);
  }

  /// The time of a set with as much look-ahead as is allowed and as many blocks filled as ever could be.
  double tight_bound(const ResidentSet& set) const {
    std::vector<bool> filled(set.resident.size(), false);
    for (const auto block : could_fill(set)) filled[block] = true;
    Holds left = held_ahead(view_, set.resident, options_.max_in_flight, UINT64_MAX);
    std::erase_if(left, [&](auto& hold) { return filled[hold.block]; });
    return steady_units(view_.durations, left);
  }

  /// Every look-ahead of a set.
  void expand(const ResidentSet& set, std::uint32_t index) {
    std::vector<Holds> seen;
    const auto open_once = [&](Holds holds) {
      if (std::find(seen.begin(), seen.end(), holds) != seen.end()) return;
      seen.push_back(holds);
      open(set, index, kCircle, std::move(holds));
    };
    const Holds strict = held_while_computing(view_, set.resident);
    const Bytes least = load_of(view_, strict);
    for (int in_flight = options_.max_in_flight; in_flight >= 1; --in_flight) {
      const Holds full = held_ahead(view_, set.resident, in_flight, UINT64_MAX);
      const Bytes most = load_of(view_, full);
      // Look-ahead everywhere; half of what that costs; what is free in the shadow of the busiest block.
      for (const Bytes cap : {most, least + (most - least) / 2, least}) {
        if (set.bytes + cap > budget_) continue;
        open_once(cap == most ? full : held_ahead(view_, set.resident, in_flight, cap));
        if (most == least) break;
      }
    }
    open_once(strict);
  }

  bool better(double units, std::int64_t copied) const {
    return !best_ || units < best_->units || (units == best_->units && copied < best_->copied);
  }

  /// False if it does not fit when packed.
  bool try_holds(const ResidentSet& set, const Holds& holds) {
    const Bytes room = budget_ - set.bytes;
    Candidate c{set.resident, set.bytes, holds, pack_transient(view_, holds, kQuick, room), 0, 0};
    if (view_.blocks <= kMiddlingStage && c.packing.size > room)
      c.packing = pack_transient(view_, holds, view_.blocks <= kSmallStage ? kCareful : kModerate, room + room / 12);
    if (c.packing.size > room) return false;
    finish(std::move(c));
    return true;
  }

  void finish(Candidate c) {
    if (fills()) fill_up(view_, budget_, c);
    c.units = steady_units(view_.durations, c.holds);
    c.copied = copy_units(view_, c.holds);
    if (better(c.units, c.copied)) best_ = std::move(c);
  }

  const StageView& view_;
  Bytes budget_;
  const PlanOptions& options_;
  std::optional<Candidate> best_;
  std::vector<Node> open_;  ///< a heap, least bound first
};

StagePlan to_plan(const StageView& view, const Candidate& c, Policy policy) {
  const auto& stage = view.stage;
  StagePlan plan;
  const auto slots = c.holds.size();
  plan.resident.assign(stage.blocks.size(), true);
  std::vector<int> held(stage.blocks.size(), 0);
  std::vector<Bytes> slot_bytes(stage.blocks.size(), 0);
  for (std::size_t i = 0; i < slots; ++i) {
    const auto& hold = c.holds[i];
    const int after = static_cast<int>(hold.block) - hold.ahead - 1;
    plan.copies.push_back({hold.block, c.packing.offsets[i], after < 0 ? after + view.blocks : after, after < 0});
    plan.resident[hold.block] = false;
    plan.bytes_per_sweep += stage.blocks[hold.block].weights;
    for (int j = 0, at = (after + 1 + view.blocks) % view.blocks; j <= hold.ahead; ++j, at = (at + 1) % view.blocks) {
      plan.in_flight = std::max(plan.in_flight, ++held[at]);
      plan.slot_bytes = std::max(plan.slot_bytes, slot_bytes[at] += view.weights[hold.block]);
    }
  }
  plan.workspace.assign(c.packing.offsets.begin() + static_cast<std::ptrdiff_t>(slots),
                        c.packing.offsets.begin() + static_cast<std::ptrdiff_t>(slots + stage.blocks.size()));
  plan.state.assign(c.packing.offsets.begin() + static_cast<std::ptrdiff_t>(slots + stage.blocks.size()),
                    c.packing.offsets.end());
  plan.give_up = policy == Policy::first_k ? view.streamable : view.spread;
  std::reverse(plan.give_up.begin(), plan.give_up.end());
  std::erase_if(plan.give_up, [&](auto block) { return !plan.resident[block]; });
  plan.transient = c.packing.size;
  for (const auto block : plan.give_up) plan.resident_bytes += view.weights[block];
  std::vector<Extent> states;
  for (const auto& state : stage.state) states.push_back({state.size, state.from, state.to});
  plan.state_bytes = packing_load(states, std::max(1, view.blocks * stage.lanes), stage.alignment);
  for (const auto& block : stage.blocks)
    plan.workspace_bytes = std::max(plan.workspace_bytes, align_up(block.workspace, stage.alignment));
  const double unit = view.durations.unit_s;
  plan.step_s = c.units * unit;
  plan.roofline_s = static_cast<double>(std::max(c.copied, view.durations.compute_sum)) * unit;
  return plan;
}

Status check(const StageCost& stage) {
  const auto invalid = [](std::string message) { return fail(Code::invalid_argument, std::move(message)); };
  const auto time = [](double seconds) { return seconds >= 0 && seconds < 1e12; };
  if (stage.blocks.empty()) return invalid("a stage needs at least one block");
  if (stage.lanes < 1 || stage.blocks.size() > static_cast<std::size_t>(1 << 24) / static_cast<std::size_t>(stage.lanes))
    return invalid("lanes must be at least 1, and blocks × lanes at most 2^24");
  if (!std::has_single_bit(stage.alignment) || stage.chunk % stage.alignment != 0)
    return invalid("the alignment must be a power of two, the chunk a multiple of it");
  if (!(stage.link_bytes_per_s > 0) || !std::isfinite(stage.link_bytes_per_s) || !time(stage.link_latency_s))
    return invalid("link rate and latency must be positive");
  const int period = static_cast<int>(stage.blocks.size()) * stage.lanes;
  // Far from 2^64, so that no sum below can wrap.
  Bytes sum = 0;
  const auto add = [&](Bytes bytes) { return checked_add(sum, bytes, sum) && sum < Bytes{1} << 60; };
  for (std::size_t b = 0; b < stage.blocks.size(); ++b) {
    const auto& block = stage.blocks[b];
    if (!time(block.compute_s)) return invalid("block " + std::to_string(b) + ": compute time is negative or not a number");
    if (!add(block.weights) || !add(block.workspace))
      return invalid("block " + std::to_string(b) + ": sizes beyond any memory");
    const Bytes contiguous =
        std::max(block.weights, block.contiguous ? std::min(block.contiguous, block.workspace) : block.workspace);
    if (stage.chunk > 0 && contiguous > stage.chunk)
      return fail(Code::over_budget,
                  "block " + std::to_string(b) + " needs " + format_bytes(contiguous) +
                      " contiguous bytes, the device's largest buffer is " + format_bytes(stage.chunk),
                  0, stage.chunk);
  }
  for (std::size_t i = 0; i < stage.state.size(); ++i) {
    const auto& state = stage.state[i];
    if (state.from < 0 || state.from >= period || state.to < 0 || state.to >= period || !add(state.size))
      return invalid("state " + std::to_string(i) + ": ticks outside the sweep, or a size beyond any memory");
    if (stage.chunk > 0 && state.size > stage.chunk)
      return fail(Code::over_budget,
                  "state " + std::to_string(i) + " needs " + format_bytes(state.size) +
                      " contiguous bytes, the device's largest buffer is " + format_bytes(stage.chunk),
                  0, stage.chunk);
  }
  return {};
}

Packing smallest_packing(const StageView& view) {
  return pack_transient(view, held_while_computing(view, std::vector<bool>(static_cast<std::size_t>(view.blocks), false)),
                        kThorough);
}

}  // namespace

std::string_view policy_name(Policy policy) {
  switch (policy) {
    case Policy::interleaved: return "interleaved";
    case Policy::first_k: return "first-k";
    case Policy::all_streamed: return "all-streamed";
    case Policy::all_resident: return "all-resident";
  }
  return "unknown";
}

Bytes smallest_transient(const StageCost& stage) { return smallest_packing(StageView(stage)).size; }

struct StagePlanner::Prepared {
  explicit Prepared(const StageCost& stage)
      : view(stage),
        streamed(smallest_packing(view)),
        everything{std::vector<bool>(stage.blocks.size(), false), 0},
        resident(pack_transient(view, {}, kThorough)) {
    for (const auto block : view.streamable) {
      everything.resident[block] = true;
      everything.bytes += view.weights[block];
    }
  }
  StageView view;
  Packing streamed;        ///< everything streamed, nothing held ahead
  ResidentSet everything;  ///< that can stay
  Packing resident;        ///< the transient zone beside it
  std::vector<ResidentSet> sets;
};

StagePlanner::StagePlanner(std::unique_ptr<Prepared> prepared) : prepared_(std::move(prepared)) {}
StagePlanner::StagePlanner(StagePlanner&&) noexcept = default;
StagePlanner& StagePlanner::operator=(StagePlanner&&) noexcept = default;
StagePlanner::~StagePlanner() = default;

Result<StagePlanner> StagePlanner::open(const StageCost& stage) {
  SLUICE_TRY(check(stage));
  return StagePlanner(std::make_unique<Prepared>(stage));
}

Bytes StagePlanner::smallest() const { return prepared_->streamed.size; }

Result<StagePlan> StagePlanner::plan(Bytes budget, const PlanOptions& options) {
  if (options.max_in_flight < 1) return fail(Code::invalid_argument, "max_in_flight must be at least 1");
  const auto& view = prepared_->view;
  const auto& everything = prepared_->everything;
  const Bytes full = prepared_->resident.size + everything.bytes;
  if (options.policy == Policy::all_resident && full > budget)
    return fail(Code::over_budget,
                "keeping every block needs " + format_bytes(full) + ", the budget is " + format_bytes(budget) +
                    ": raise the budget or let blocks be streamed",
                full, budget);
  if (options.policy != Policy::all_streamed && full <= budget) {
    const auto units = static_cast<double>(view.durations.compute_sum);
    return to_plan(view, {everything.resident, everything.bytes, {}, prepared_->resident, units, 0}, options.policy);
  }
  const Bytes smallest = prepared_->streamed.size;
  if (smallest > budget)
    return fail(Code::over_budget,
                "the largest block with its workspace and state needs " + format_bytes(smallest) + " (" +
                    std::to_string(smallest) + " bytes), the budget is " + format_bytes(budget),
                smallest, budget);
  Search search(view, budget, options);
  search.start(prepared_->streamed);
  switch (options.policy) {
    case Policy::all_streamed: search.try_sets({{std::vector<bool>(everything.resident.size(), false), 0}}); break;
    case Policy::first_k: search.try_sets(first_k_sets(view)); break;
    default:
      if (prepared_->sets.empty()) prepared_->sets = resident_sets(view);
      search.try_sets(prepared_->sets);
  }
  return to_plan(view, *search.best(), options.policy);
}

Result<StagePlan> plan_stage(const StageCost& stage, Bytes budget, const PlanOptions& options) {
  SLUICE_ASSIGN(auto planner, StagePlanner::open(stage));
  return planner.plan(budget, options);
}

}  // namespace sluice
