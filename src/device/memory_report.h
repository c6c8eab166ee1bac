#pragma once

#include <optional>

#include "device/device.h"

namespace sluice {

/// What to believe of a driver's report. Drivers have been seen to say free > total, 0, 2^64−1 and, where more is in use than
/// there is, a negative number as a huge one.
/// - total 0 or ≥ 2^63: nothing is known, all zero;
/// - free > total: a wrapped or made-up figure. Not known; total is kept and free is what our own books (`booked`) leave of it;
/// - else free and total as they are.
/// What is not known says why in `doubt`. Pure.
MemoryView believe_memory(Bytes free, Bytes total, Bytes booked);

/// The bytes a plan may use of a device: clamp(free − reserve, 0, total), less where `limit` is given; `limit` alone where
/// memory is not known, and none (no figure) where that is missing too. `held` is what the caller already holds there, which it
/// may use again. Pure.
std::optional<Bytes> usable_memory(const MemoryView& memory, Bytes held, Bytes reserve, std::optional<Bytes> limit);

}  // namespace sluice
