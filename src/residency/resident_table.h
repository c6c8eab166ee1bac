#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "device/arena.h"

namespace sluice {

using ComponentId = std::uint32_t;

/// A block of a registered component.
struct BlockId {
  ComponentId component = 0;
  std::uint32_t block = 0;
  auto operator<=>(const BlockId&) const = default;
};

/// Which blocks have a complete copy on the device, and where. Not thread safe; its owner locks.
class ResidentTable {
 public:
  std::optional<Address> find(BlockId block) const;
  /// The block now lives in [address, address + size). Whatever lived there or overlapped it does so no more.
  void put(BlockId block, Address address, Bytes size);
  void erase(BlockId block);
  /// Every block of the component.
  void erase_component(ComponentId component);
  /// Blocks that overlap [from, to), by address.
  std::vector<BlockId> overlapping(Address from, Address to) const;

 private:
  struct Place {
    BlockId block;
    Bytes size = 0;
  };
  std::map<Address, Place> places_;  // disjoint
  std::map<BlockId, Address> addresses_;
};

}  // namespace sluice
