#pragma once

#include <vector>

#include "device/device.h"

namespace sluice {

/// A place in an arena: bytes from its start. Chunk i covers [i × chunk_size, (i + 1) × chunk_size); no object crosses a
/// chunk's end.
using Address = Bytes;

/// The one allocation of a device: weights, stream slots, state and workspace are all places in it. A few ggml buffers
/// ("chunks"), their number ⌈size ÷ chunk_size⌉, whatever the number of blocks; the last one is exactly the remainder. Leased
/// as Use::arena while it lives. Goes before its device. Threads: `bind` and `discard` from any, on disjoint bytes; the rest
/// from one.
class Arena {
 public:
  /// Leases exactly `size` bytes, then allocates them. Errors: over_budget, device_oom (nothing is kept).
  static Result<Arena> open(Device& device, Bytes size);
  /// No-op value: size 0.
  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  Bytes size() const { return size_; }
  Bytes chunk_size() const { return chunk_size_; }
  /// The chunk size an arena on this device would have: info().max_buffer rounded down to the alignment.
  static Bytes chunk_size_for(const DeviceInfo& info);

  /// Gives `tensor` (no memory yet, not a view) its place. The address must be aligned and the tensor, with the padding its
  /// buffer type asks for, inside one chunk. Errors: invalid_argument where one of these is not so; device_failed.
  Status bind(ggml_tensor* tensor, Address address) const;
  /// Tells the device that these bytes mean nothing any more. Bytes beyond the end are ignored.
  void discard(Address address, Bytes size) const;
  /// The lease behind the arena, to lend bytes from by use.
  Lease& lease() { return lease_; }

 private:
  Device* device_ = nullptr;
  Bytes size_ = 0, chunk_size_ = 0;
  Lease lease_;  // declared before the chunks, so given back after the memory is gone
  std::vector<DeviceBuffer> chunks_;
};

}  // namespace sluice
