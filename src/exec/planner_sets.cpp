#include <algorithm>
#include <numeric>
#include <set>

#include "exec/planner.h"

namespace sluice::planner {
namespace {

constexpr std::size_t kExhaustive = 12, kSwapped = 20, kSizes = 64;

ResidentSet make_set(const StageView& view, const std::vector<std::uint32_t>& blocks, std::size_t count) {
  ResidentSet set{std::vector<bool>(static_cast<std::size_t>(view.blocks), false), 0};
  for (std::size_t i = 0; i < count; ++i) {
    set.resident[blocks[i]] = true;
    set.bytes += view.weights[blocks[i]];
  }
  return set;
}

/// Every `step`-th prefix of an order.
void add_prefixes(const StageView& view, const std::vector<std::uint32_t>& order, std::vector<ResidentSet>& sets) {
  const std::size_t step = (order.size() + kSizes - 1) / kSizes;
  for (std::size_t k = 0; k < order.size(); k += step) sets.push_back(make_set(view, order, k));
  sets.push_back(make_set(view, order, order.size()));
}

/// Walks the sweep and streams a block whenever the streamed bytes have fallen behind `share` of the pace.
void add_paced(const StageView& view, const std::vector<double>& pace, std::vector<ResidentSet>& sets) {
  const double pace_sum = std::accumulate(pace.begin(), pace.end(), 0.0);
  double bytes = 0;
  for (const auto b : view.streamable) bytes += static_cast<double>(view.weights[b]);
  if (pace_sum <= 0 || bytes <= 0) return;
  const std::size_t sizes = std::min(kSizes, view.streamable.size());
  for (std::size_t i = 1; i < sizes; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(sizes) * bytes / pace_sum;
    std::vector<std::uint32_t> kept;
    double due = 0, streamed = 0;
    std::size_t b = 0;
    for (const auto block : view.streamable) {
      for (; b <= block; ++b) due += share * pace[b];
      const double size = static_cast<double>(view.weights[block]);
      if (streamed + size / 2 <= due)
        streamed += size;
      else
        kept.push_back(block);
    }
    sets.push_back(make_set(view, kept, kept.size()));
  }
}

/// Every set with one resident exchanged for one that is not. From all sets, not from a budget's best, so that what is tried at
/// one budget is tried at every other.
void add_swaps(const StageView& view, std::vector<ResidentSet>& sets) {
  const auto& all = view.streamable;
  std::vector<std::uint32_t> masks;
  for (const auto& set : sets) {
    std::uint32_t mask = 0;
    for (std::size_t i = 0; i < all.size(); ++i) mask |= static_cast<std::uint32_t>(set.resident[all[i]]) << i;
    masks.push_back(mask);
  }
  std::sort(masks.begin(), masks.end());
  masks.erase(std::unique(masks.begin(), masks.end()), masks.end());
  for (std::size_t at = 0, count = masks.size(); at < count; ++at)
    for (std::size_t out = 0; out < all.size(); ++out)
      for (std::size_t in = 0; in < all.size(); ++in)
        if ((masks[at] >> out & 1) && !(masks[at] >> in & 1)) masks.push_back(masks[at] ^ (1u << out) ^ (1u << in));
  std::sort(masks.begin(), masks.end());
  masks.erase(std::unique(masks.begin(), masks.end()), masks.end());
  sets.clear();
  for (const auto mask : masks) {
    ResidentSet set{std::vector<bool>(static_cast<std::size_t>(view.blocks), false), 0};
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!(mask >> i & 1)) continue;
      set.resident[all[i]] = true;
      set.bytes += view.weights[all[i]];
    }
    sets.push_back(std::move(set));
  }
}

}  // namespace

std::vector<ResidentSet> first_k_sets(const StageView& view) {
  std::vector<ResidentSet> sets;
  for (std::size_t k = 0; k <= view.streamable.size(); ++k) sets.push_back(make_set(view, view.streamable, k));
  return sets;
}

std::vector<ResidentSet> resident_sets(const StageView& view) {
  std::vector<ResidentSet> sets;
  const auto& all = view.streamable;
  if (all.size() <= kExhaustive) {
    for (std::size_t mask = 0; mask < std::size_t{1} << all.size(); ++mask) {
      std::vector<std::uint32_t> kept;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (mask >> i & 1) kept.push_back(all[i]);
      sets.push_back(make_set(view, kept, kept.size()));
    }
    return sets;
  }
  sets = first_k_sets(view);
  auto order = all;
  std::reverse(order.begin(), order.end());
  add_prefixes(view, order, sets);
  add_prefixes(view, view.spread, sets);
  add_prefixes(view, view.by_size, sets);
  order = view.by_size;
  std::reverse(order.begin(), order.end());
  add_prefixes(view, order, sets);
  // What takes longest to copy for its compute time first.
  const auto ratio = [&](std::uint32_t b) {
    return static_cast<double>(view.weights[b]) / std::max(1e-12, view.stage.blocks[b].compute_s);
  };
  order = view.spread;
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return ratio(a) > ratio(b); });
  add_prefixes(view, order, sets);
  // Evenly by count, by bytes, by compute time, and by the last two together.
  std::vector<double> count(static_cast<std::size_t>(view.blocks), 0), bytes = count, compute = count, both = count;
  double all_bytes = 0, all_compute = 0;
  for (const auto& block : view.stage.blocks) all_compute += block.compute_s;
  for (const auto b : all) all_bytes += static_cast<double>(view.weights[b]);
  for (std::size_t b = 0; b < count.size(); ++b) {
    bytes[b] = static_cast<double>(view.weights[b]);
    count[b] = bytes[b] > 0;
    compute[b] = view.stage.blocks[b].compute_s;
    both[b] = bytes[b] / std::max(1.0, all_bytes) + compute[b] / std::max(1e-12, all_compute);
  }
  for (const auto& pace : {count, bytes, compute, both}) add_paced(view, pace, sets);
  if (all.size() <= kSwapped) add_swaps(view, sets);
  return sets;
}

}  // namespace sluice::planner
