#pragma once

#include <optional>
#include <vector>

#include "device/arena.h"

namespace sluice {

/// The free part of an arena during planning: disjoint ranges, from which residents are cut at the far end.
class FreeRanges {
 public:
  /// [from, to), never crossing a multiple of `chunk` (0: no such bound) inside one range.
  FreeRanges(Address from, Address to, Bytes chunk);
  /// The highest place for `size` bytes that does not begin below `floor`, taken out of the free ranges; nothing when no range
  /// is large enough.
  std::optional<Address> take_highest(Bytes size, Address floor = 0);

 private:
  struct Range {
    Address from = 0, to = 0;
  };
  std::vector<Range> ranges_;  // ascending
};

}  // namespace sluice
