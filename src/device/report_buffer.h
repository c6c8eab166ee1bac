#pragma once

#include "device/device.h"

namespace sluice {

/// The largest buffer a device really gives.
struct LargestBuffer {
  Bytes size = 0;         ///< given; 0: not even the smallest
  bool at_least = false;  ///< nothing larger was asked for: it is all that may be asked for
};

/// Asks: doubling from 1 MiB (or `most`) until the device refuses or `most` is reached, then halving the step five times, so
/// that the answer is at most 1/32 too small. Each buffer is leased and given back before the next; at most some 30
/// allocations. What is booked by others is not to be had.
LargestBuffer find_largest_buffer(Device& device, Bytes most);

/// What may be asked for without harm: what is free, where it is known, else 64 GiB; on the simulated device, which fills its
/// buffers, at most 1 GiB.
Bytes askable(const Device& device);

}  // namespace sluice
