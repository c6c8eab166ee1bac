#include "support/step_bound.h"

#include <algorithm>

namespace sluice::test {

Bytes live_state(const StageCost& stage, std::size_t block) {
  const int first = static_cast<int>(block) * stage.lanes, last = first + stage.lanes - 1;
  Bytes live = 0;
  for (const auto& s : stage.state) {
    // A value that lives across the end of a sweep has its first tick behind its last.
    const bool wraps = s.from > s.to;
    if (wraps ? first <= s.to || last >= s.from : s.from <= last && first <= s.to) live += s.size;
  }
  return live;
}

double step_bound(const StageCost& stage, Bytes arena) {
  const std::size_t n = stage.blocks.size();
  const auto block = [&](std::size_t i) -> const BlockCost& { return stage.blocks[i % n]; };
  std::vector<double> room(n);
  for (std::size_t i = 0; i < n; ++i)
    room[i] = static_cast<double>(arena) - static_cast<double>(live_state(stage, i) + block(i).workspace);
  double bound = 0;
  std::vector<double> at(n + 1);  // earliest start of the a-th block behind the first
  for (std::size_t first = 0; first < n; ++first) {
    std::fill(at.begin(), at.end(), 0.0);
    for (std::size_t a = 0; a < n; ++a) {
      double compute = 0, weights = static_cast<double>(block(first + a).weights);
      for (std::size_t z = a + 1; z <= n; ++z) {
        compute += block(first + z - 1).compute_s;
        // Once around, the block's own weights are those that were there at the start.
        if (z < a + n) weights += static_cast<double>(block(first + z).weights);
        at[z] = std::max(at[z], at[a] + std::max(compute, (weights - room[(first + a) % n]) / stage.link_bytes_per_s));
      }
    }
    bound = std::max(bound, at[n]);
  }
  return bound;
}

}  // namespace sluice::test
