#pragma once

#include <memory>
#include <optional>

#include "device/device.h"
#include "device/ledger.h"

namespace sluice {

/// A piece of host memory and, where it was really pinned, its entry in the books of pinned memory.
struct HostPiece {
  Lease pinned;  // declared before the memory it stands for, so given back after it
  std::unique_ptr<HostBuffer> buffer;
};

/// The books of host memory: one ledger for all of it, one for the part of it that is pinned. What is in the first and not in
/// the second is pageable. Thread safe.
class HostPool {
 public:
  /// `budget`: pageable and pinned together; none: unlimited. `pinned_budget`: none: half of the host's memory, since what is
  /// pinned is lost to everything else that runs (unlimited where the system does not say how much there is).
  HostPool(std::optional<Bytes> budget, std::optional<Bytes> pinned_budget);

  Ledger& all() { return all_; }
  Ledger& pinned() { return pinned_; }

  /// Memory for `size` bytes that the caller has booked with `all()`. Pinned where the device pins and the budget for it has
  /// room, else pageable: pinning fails without a word, so what is booked is what the buffer says of itself. Errors:
  /// device_oom.
  Result<HostPiece> allocate(Device& device, Use use, Bytes size);

 private:
  Ledger all_, pinned_;
};

}  // namespace sluice
