#include <algorithm>
#include <limits>
#include <numeric>

#include "exec/planner.h"

namespace sluice::planner {
namespace {

/// Position `steps` blocks before `block` on the circle.
int before(int block, int steps, int blocks) { return ((block - steps) % blocks + blocks) % blocks; }

std::vector<Bytes> block_loads(const StageView& view, const Holds& holds) {
  auto load = view.base;
  for (const auto& hold : holds) {
    int at = before(static_cast<int>(hold.block), hold.ahead, view.blocks);
    for (int i = 0; i <= hold.ahead; ++i) {
      load[at] += view.weights[hold.block];
      if (++at == view.blocks) at = 0;
    }
  }
  return load;
}

/// Blocks sorted so that each prefix is spread evenly: by the bit reversal of their position.
std::vector<std::uint32_t> van_der_corput(std::vector<std::uint32_t> blocks) {
  int bits = 0;
  while ((std::size_t{1} << bits) < blocks.size()) ++bits;
  std::vector<std::uint32_t> order;
  order.reserve(blocks.size());
  for (std::size_t i = 0; i < std::size_t{1} << bits; ++i) {
    std::size_t reversed = 0;
    for (int bit = 0; bit < bits; ++bit) reversed |= (i >> bit & 1) << (bits - 1 - bit);
    if (reversed < blocks.size()) order.push_back(blocks[reversed]);
  }
  return order;
}

}  // namespace

StageView::StageView(const StageCost& cost)
    : stage(cost), blocks(static_cast<int>(cost.blocks.size())), durations(sluice::durations(cost)) {
  const int lanes = cost.lanes, period = blocks * lanes;
  std::vector<Bytes> live(static_cast<std::size_t>(period), 0);
  for (const auto& state : cost.state) {
    const int length = (state.to - state.from + period) % period + 1;
    for (int i = 0; i < length; ++i) live[(state.from + i) % period] += align_up(state.size, cost.alignment);
  }
  for (int b = 0; b < blocks; ++b) {
    const auto& block = cost.blocks[b];
    weights.push_back(align_up(block.weights, cost.alignment));
    Bytes most = 0;
    for (int lane = 0; lane < lanes; ++lane) most = std::max(most, live[b * lanes + lane]);
    base.push_back(most + align_up(block.workspace, cost.alignment));
    if (weights[b] > 0) streamable.push_back(static_cast<std::uint32_t>(b));
  }
  spread = van_der_corput(streamable);
  by_size = spread;
  std::stable_sort(by_size.begin(), by_size.end(), [&](auto a, auto b) { return weights[a] < weights[b]; });
}

Holds held_while_computing(const StageView& view, const std::vector<bool>& resident) {
  Holds holds;
  for (const auto b : view.streamable)
    if (!resident[b]) holds.push_back({b, 0});
  return holds;
}

Holds held_ahead(const StageView& view, const std::vector<bool>& resident, int in_flight, Bytes cap) {
  Holds holds = held_while_computing(view, resident);
  auto load = block_loads(view, holds);
  const int m = static_cast<int>(holds.size()), n = view.blocks;
  for (int level = 1; level <= in_flight; ++level) {
    for (int k = 0; k < m; ++k) {
      // Held all round it would better be a resident: one block short of that at most.
      int target = std::max(0, n - 2);
      if (level < m) {
        const int earlier = static_cast<int>(holds[before(k, level, m)].block);
        target = std::min(target, before(static_cast<int>(holds[k].block), earlier + 1, n));
      }
      const Bytes size = view.weights[holds[k].block];
      for (int at = before(static_cast<int>(holds[k].block), holds[k].ahead + 1, n); holds[k].ahead < target;
           at = before(at, 1, n)) {
        if (load[at] + size > cap) break;
        load[at] += size;
        ++holds[k].ahead;
      }
    }
  }
  return holds;
}

Holds cut_open(const StageView& view, Holds holds) {
  if (holds.empty()) return holds;
  const int n = view.blocks, m = static_cast<int>(holds.size());
  int at = 0;
  std::int64_t least = INT64_MAX;
  for (int j = 0; j < m; ++j) {
    const int start = static_cast<int>(holds[j].block);
    std::int64_t lost = view.durations.copy[start];  // ties: where the copy that waits is shortest
    for (int k = j; k < j + std::min(m, 4); ++k) {
      const auto& hold = holds[k % m];
      const int reach = before(static_cast<int>(hold.block), start, n);
      for (int i = reach; i < hold.ahead; ++i) lost += m * view.durations.compute[before(start, i - reach + 1, n)];
    }
    if (lost < least) {
      least = lost;
      at = start;
    }
  }
  for (auto& hold : holds) hold.ahead = std::min(hold.ahead, before(static_cast<int>(hold.block), at, n));
  return holds;
}

Bytes load_of(const StageView& view, const Holds& holds) {
  const auto load = block_loads(view, holds);
  return load.empty() ? 0 : *std::max_element(load.begin(), load.end());
}

Holds filled_to_load(const StageView& view, const Holds& holds, Bytes resident_bytes, Bytes budget) {
  constexpr auto kNone = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::uint32_t> rank(static_cast<std::size_t>(view.blocks), kNone);  // smallest first
  std::vector<bool> streamed(rank.size(), false);
  for (const auto& hold : holds) streamed[hold.block] = true;
  std::vector<Bytes> bytes{resident_bytes};  // with the first k filled
  for (const auto block : view.by_size) {
    if (!streamed[block]) continue;
    rank[block] = static_cast<std::uint32_t>(bytes.size() - 1);
    bytes.push_back(bytes.back() + view.weights[block]);
  }
  const auto left = [&](std::size_t filled) {
    Holds kept;
    for (const auto& hold : holds)
      if (rank[hold.block] >= filled) kept.push_back(hold);
    return kept;
  };
  // Filling one more adds its bytes and takes at most as many from the load, so what fits is a prefix.
  std::size_t fits = 0, fails = holds.size() + 1;
  while (fits + 1 < fails) {
    const std::size_t middle = (fits + fails) / 2;
    (bytes[middle] <= budget && load_of(view, left(middle)) <= budget - bytes[middle] ? fits : fails) = middle;
  }
  return left(fits);
}

Packing pack_transient(const StageView& view, const Holds& holds, int rounds, Bytes limit) {
  const int lanes = view.stage.lanes, period = view.blocks * lanes;
  std::vector<Extent> extents;
  extents.reserve(holds.size() + view.base.size() + view.stage.state.size());
  for (const auto& hold : holds) {
    const int block = static_cast<int>(hold.block);
    extents.push_back({view.weights[hold.block], before(block, hold.ahead, view.blocks) * lanes, block * lanes + lanes - 1});
  }
  for (int b = 0; b < view.blocks; ++b) extents.push_back({view.stage.blocks[b].workspace, b * lanes, b * lanes + lanes - 1});
  for (const auto& state : view.stage.state) extents.push_back({state.size, state.from, state.to});
  return pack_extents(extents, period, view.stage.alignment, view.stage.chunk, rounds, limit);
}

}  // namespace sluice::planner
