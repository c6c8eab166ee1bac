#pragma once

#include <span>
#include <vector>

#include "base/bytes.h"

namespace sluice {

/// An object that needs `size` bytes during the ticks from..to, both inclusive, on a circle of `period` ticks: from > to wraps
/// round the end of a sweep into the next one. from = 0, to = period − 1 is "always".
struct Extent {
  Bytes size = 0;
  int from = 0, to = 0;
};

struct Packing {
  std::vector<Bytes> offsets;  ///< parallel to the extents, multiples of `alignment`
  Bytes size = 0;              ///< highest end
};

/// The most bytes that are in use at one tick: no packing can be smaller.
Bytes packing_load(std::span<const Extent> extents, int period, Bytes alignment);

/// Places the extents so that two that share a tick share no byte, in as little as it can (several orders are tried; the goal
/// is ≤ 1.05 × the load). No object crosses a multiple of `chunk` (0: no such bound; else a multiple of `alignment`). An object
/// larger than `chunk` starts at a multiple of it: whether it may be cut there is for the caller to know. Sizes are rounded up
/// to `alignment` (a power of two); 0 ≤ from, to < period. Empty objects lie at 0. Pure and deterministic. `rounds` bounds the
/// improvement after the first twelve attempts (fewer are made where n is large); below 6, best fit is not tried. A packing
/// larger than `limit` is of no use to the caller: when the first attempts exceed it by a quarter, the search ends and size is
/// UINT64_MAX; the result never depends on it otherwise. Cost: n × (objects met in an object's life) per attempt.
Packing pack_extents(std::span<const Extent> extents, int period, Bytes alignment, Bytes chunk, int rounds = 200,
                     Bytes limit = UINT64_MAX);

}  // namespace sluice
