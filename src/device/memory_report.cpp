#include "device/memory_report.h"

#include <algorithm>

namespace sluice {

MemoryView believe_memory(Bytes free, Bytes total, Bytes booked) {
  const auto wrapped = [](Bytes bytes) { return bytes >= Bytes{1} << 63; };
  if (total == 0) return {.doubt = "the driver says that there is no memory at all"};
  if (wrapped(total)) return {.doubt = "the driver says that there is more memory than an address reaches"};
  if (free > total)
    return {.free = total - std::min(total, booked),
            .total = total,
            .known = false,
            .doubt = wrapped(free)
                         ? std::string_view("free memory below zero, as the driver says: more is in use than there is")
                         : std::string_view("the driver says that more is free than there is")};
  return {.free = free, .total = total, .known = true};
}

std::optional<Bytes> usable_memory(const MemoryView& memory, Bytes held, Bytes reserve, std::optional<Bytes> limit) {
  if (!memory.known) return limit;
  const Bytes reachable = memory.free + std::min(held, memory.total - memory.free);
  const Bytes usable = reachable - std::min(reachable, reserve);
  return limit ? std::min(usable, *limit) : usable;
}

}  // namespace sluice
