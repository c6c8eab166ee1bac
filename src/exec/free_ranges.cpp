#include "exec/free_ranges.h"

#include <algorithm>

namespace sluice {

FreeRanges::FreeRanges(Address from, Address to, Bytes chunk) {
  while (from < to) {
    const Address end = chunk == 0 ? to : std::min(to, (from / chunk + 1) * chunk);
    ranges_.push_back({from, end});
    from = end;
  }
}

std::optional<Address> FreeRanges::take_highest(Bytes size, Address floor) {
  for (auto r = ranges_.rbegin(); r != ranges_.rend(); ++r) {
    if (r->to < size || r->to - size < std::max(r->from, floor)) continue;
    r->to -= size;
    return r->to;
  }
  return std::nullopt;
}

}  // namespace sluice
