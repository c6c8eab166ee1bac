#include "exec/timeline.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

/// The moments that the next sweep depends on. Moments are absolute, in units.
class Player {
 public:
  Player(const Durations& durations, std::span<const Prefetch> copies)
      : durations_(durations), copies_(copies), end_(durations.compute.size(), 0), before_(end_) {}

  /// Plays one sweep; `visit(block, copy start, copy end, compute start, compute end)` for each block.
  template <typename Visit>
  void sweep(Visit visit) {
    std::swap(end_, before_);
    std::size_t next = 0;
    const auto n = static_cast<int>(end_.size());
    for (int b = 0; b < n; ++b) {
      std::int64_t start = compute_, copy_start = 0, copy_end = 0;
      if (next < copies_.size() && copies_[next].block == static_cast<std::uint32_t>(b)) {
        const int after = b - copies_[next].ahead - 1;
        copy_start = std::max(link_, after >= 0 ? end_[after] : before_[after + n]);
        copy_end = link_ = copy_start + durations_.copy[b];
        start = std::max(start, link_);
        ++next;
      }
      compute_ = end_[b] = start + durations_.compute[b];
      visit(b, copy_start, copy_end, start, compute_);
    }
  }

  std::int64_t now() const { return compute_; }
  /// What the next sweep sees, relative to now: equal states have equal futures.
  std::vector<std::int64_t> state() const {
    std::vector<std::int64_t> state{link_ - compute_};
    for (const auto& copy : copies_) {
      const int after = static_cast<int>(copy.block) - copy.ahead - 1;
      if (after < 0) state.push_back(end_[after + static_cast<int>(end_.size())] - compute_);
    }
    return state;
  }

 private:
  const Durations& durations_;
  std::span<const Prefetch> copies_;
  std::int64_t link_ = 0, compute_ = 0;
  std::vector<std::int64_t> end_, before_;  ///< of each block's computation, this sweep and the one before
};

}  // namespace

Durations durations(const StageCost& stage) {
  Durations d;
  double sum = 0;
  std::vector<double> copy;
  for (const auto& block : stage.blocks) {
    copy.push_back(block.weights > 0 ? static_cast<double>(block.weights) / stage.link_bytes_per_s + stage.link_latency_s : 0);
    sum += block.compute_s + copy.back();
  }
  d.unit_s = sum > 0 ? std::ldexp(sum, -40) : 1;
  for (std::size_t b = 0; b < copy.size(); ++b) {
    d.compute.push_back(std::llround(stage.blocks[b].compute_s / d.unit_s));
    d.copy.push_back(std::llround(copy[b] / d.unit_s));
    d.compute_sum += d.compute.back();
  }
  return d;
}

double steady_units(const Durations& durations, std::span<const Prefetch> copies) {
  std::int64_t roofline = 0;
  for (const auto& copy : copies) roofline += durations.copy[copy.block];
  roofline = std::max(roofline, durations.compute_sum);
  if (copies.empty()) return static_cast<double>(roofline);

  constexpr int kSweeps = 64, kLongestPattern = 8;
  struct Seen {
    std::vector<std::int64_t> state;
    std::int64_t at = 0;
  };
  std::vector<Seen> seen;
  Player player(durations, copies);
  const auto ignore = [](int, auto, auto, auto, auto) {};
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    player.sweep(ignore);
    Seen now{player.state(), player.now()};
    for (int back = 1; back <= std::min(kLongestPattern, sweep); ++back) {
      const auto& then = seen[seen.size() - back];
      if (then.state == now.state) return std::max(static_cast<double>(now.at - then.at) / back, static_cast<double>(roofline));
    }
    seen.push_back(std::move(now));
  }
  constexpr int kHalf = kSweeps / 2;
  const double average = static_cast<double>(seen.back().at - seen[kHalf - 1].at) / kHalf;
  return std::max(average, static_cast<double>(roofline));
}

Timeline simulate(const StageCost& stage, const StagePlan& plan, int sweeps) {
  const auto d = durations(stage);
  const int n = static_cast<int>(stage.blocks.size());
  std::vector<Prefetch> copies;
  for (const auto& copy : plan.copies) {
    const int after = copy.after_block - (copy.after_previous_sweep ? n : 0);
    copies.push_back({copy.block, static_cast<int>(copy.block) - after - 1});
  }
  Timeline timeline;
  timeline.steady_step_s = steady_units(d, copies) * d.unit_s;
  Player player(d, copies);
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    player.sweep([&](int block, auto copy_start, auto copy_end, auto start, auto end) {
      const auto seconds = [&](std::int64_t units) { return static_cast<double>(units) * d.unit_s; };
      timeline.events.push_back(
          {sweep, static_cast<std::uint32_t>(block), seconds(copy_start), seconds(copy_end), seconds(start), seconds(end)});
    });
    if (sweep == 0) timeline.first_step_s = static_cast<double>(player.now()) * d.unit_s;
  }
  return timeline;
}

}  // namespace sluice
