#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "device/arena.h"
#include "residency/block_id.h"

namespace sluice {

/// Which blocks have a place of their own on the device, where, and whether their bytes are there yet. Not thread safe; its
/// owner locks.
class PlaceTable {
 public:
  struct Place {
    BlockId block;
    Address at = 0;
    Bytes size = 0;
    bool loaded = false;
  };
  /// The block's place, loaded or not.
  std::optional<Place> find(BlockId block) const;
  /// The block now has [address, address + size). Whatever had these bytes or some of them has no place any more.
  void put(BlockId block, Address address, Bytes size, bool loaded);
  void erase(BlockId block);
  /// Places that overlap [from, to), by address.
  std::vector<Place> overlapping(Address from, Address to) const;
  /// By address.
  std::vector<Place> all() const;

 private:
  std::map<Address, Place> places_;  // disjoint
  std::map<BlockId, Address> addresses_;
};

}  // namespace sluice
