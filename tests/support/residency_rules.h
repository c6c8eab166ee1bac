#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "residency/device_memory.h"

namespace sluice::test {

/// When something was used last, as far as one can tell from outside.
struct LastUse {
  int from = 0, to = 0;
};

/// A block or cache on a device, and what is known of it.
struct Tenant {
  BlockId id;
  Bytes size = 0;
  bool loaded = false, cache = false, fixed = false, host_copy = false, in_zone = false;
  LastUse used;
};

/// A device's memory at one moment.
struct DeviceState {
  std::vector<Tenant> tenants;  ///< by address
  std::optional<Bytes> budget;
  Bytes total = 0, backend = 0, zone = 0;
  const Tenant* find(BlockId id) const;
};

/// A move, and whether the host had a copy just then.
struct SeenMove {
  Move move;
  bool host_copy = false;
};

/// Ids of components from here on are caches'.
inline constexpr ComponentId kFirstCache = 0x80000000;

/// What is asked of a device.
struct Asked {
  Bytes zone = 0, workspace = 0, backend = 0;
  std::set<ComponentId> own;
  std::map<BlockId, Bytes> wanted;  ///< to have a place on a shelf
  std::set<BlockId> in_zone;        ///< to have a place in the zone
  std::set<BlockId> either;         ///< of stages that will not run
  bool may_lose = false;            ///< a copy failed, or host memory is scarce: what is carried elsewhere may be lost
  bool driver_refused = false;      ///< it said no where the budget says yes: caches may go to try once more
};

/// The rules of making room (the design's section on residency), put as what may not be true of the moves that were made
/// between a state and the fulfilment of a request. Returns each broken rule in a sentence. Pure.
///
/// 1. Nothing leaves that is in use, held, flagged, required by the request, or not loaded.
/// 2. When it already fits, nothing leaves.
/// 3. What left was needed: without any one of them it would not have fit. (So given-up bytes < missing bytes + one block.)
/// 4. Order: caches, then own blocks that the plan streams, then others' with a host copy, then others'; among components the
///    least recently used first, within one the latest next use first. Whoever left instead of somebody before it in this order
///    was the larger one.
/// 5. A block is given up where a host copy remains and demoted where none does.
///
/// What lay in the zone is not bound by 2 to 4: it lies in the lee of workspaces, and goes with them.
std::vector<std::string> broken_rules(const DeviceState& before, const Asked& asked, const std::vector<SeenMove>& moves);

/// "3.1": block 1 of component 3; "cache 2".
std::string name_of(BlockId id);

}  // namespace sluice::test
