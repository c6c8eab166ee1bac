#include "device/report_buffer.h"

#include <algorithm>

namespace sluice {

LargestBuffer find_largest_buffer(Device& device, Bytes most) {
  const auto given = [&](Bytes size) {
    const auto lease = device.ledger().reserve(Use::arena, size);
    return lease && device.allocate(size);
  };
  Bytes size = std::min(MiB, most);
  if (size == 0) return {};
  // Small devices too: down first.
  while (size > 1 && !given(size)) size /= 2;
  if (size == 1 && !given(size)) return {};
  Bytes refused = 0;
  while (size < most && refused == 0) {
    const Bytes next = std::min(size * 2, most);
    if (given(next))
      size = next;
    else
      refused = next;
  }
  if (refused == 0) return {size, true};
  Bytes step = (refused - size) / 2;
  for (int i = 0; i < 5 && step > 0; ++i, step /= 2)
    if (given(size + step)) size += step;
  return {size, false};
}

Bytes askable(const Device& device) {
  const MemoryView memory = device.memory();
  const Bytes most = memory.known ? memory.free : 64 * GiB;
  return device.info().kind == DeviceKind::simulated ? std::min(most, GiB) : most;
}

}  // namespace sluice
