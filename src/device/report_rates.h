#pragma once

#include "device/device.h"

namespace sluice {

/// What a device was measured to do, on its own clock (the simulated device's may be virtual). Rates are rounded to two
/// significant figures; 0: not there, or takes no time.
struct MeasuredRates {
  double to_device = 0, to_device_pinned = 0;      ///< bytes per second, from pageable and from pinned host memory
  double from_device = 0, from_device_pinned = 0;  ///< and back
  double latency_s = 0;                            ///< of a copy of 64 bytes
  double flops_per_s = 0;                          ///< products of square f32 matrices
  /// How much of the shorter of a copy and a computation is hidden when they run at the same time, from two threads: 1 all, 0
  /// none. Negative: one of them takes no time.
  double overlap = -1;
};

/// Measures copies of at most 16 MiB and products, alone and beside one another; about half a second. What it allocates is
/// leased, at most 32 MiB, less on small devices, and given back. Not while anything else uses the device. Errors: over_budget,
/// device_oom, device_failed, cancelled.
Result<MeasuredRates> measure_rates(Device& device, const CancelToken& cancel);

}  // namespace sluice
