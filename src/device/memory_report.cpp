#include "device/memory_report.h"

#include <algorithm>

namespace sluice {

MemoryView believe_memory(Bytes free, Bytes total, Bytes booked) {
  if (total == 0 || total >= Bytes{1} << 63) return {};
  if (free > total) return {.free = total - std::min(total, booked), .total = total, .known = false};
  return {.free = free, .total = total, .known = true};
}

std::optional<Bytes> usable_memory(const MemoryView& memory, Bytes held, Bytes reserve, std::optional<Bytes> limit) {
  if (!memory.known) return limit;
  const Bytes reachable = memory.free + std::min(held, memory.total - memory.free);
  const Bytes usable = reachable - std::min(reachable, reserve);
  return limit ? std::min(usable, *limit) : usable;
}

}  // namespace sluice
