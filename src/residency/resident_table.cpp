#include "residency/resident_table.h"

namespace sluice {

std::optional<Address> ResidentTable::find(BlockId block) const {
  const auto at = addresses_.find(block);
  if (at == addresses_.end()) return std::nullopt;
  return at->second;
}

void ResidentTable::put(BlockId block, Address address, Bytes size) {
  erase(block);
  for (BlockId other : overlapping(address, address + size)) erase(other);
  if (size == 0) return;
  places_[address] = {block, size};
  addresses_[block] = address;
}

void ResidentTable::erase(BlockId block) {
  const auto at = addresses_.find(block);
  if (at == addresses_.end()) return;
  places_.erase(at->second);
  addresses_.erase(at);
}

void ResidentTable::erase_component(ComponentId component) {
  auto at = addresses_.lower_bound({component, 0});
  while (at != addresses_.end() && at->first.component == component) {
    places_.erase(at->second);
    at = addresses_.erase(at);
  }
}

std::vector<BlockId> ResidentTable::overlapping(Address from, Address to) const {
  std::vector<BlockId> blocks;
  if (from >= to) return blocks;
  auto at = places_.upper_bound(from);
  // Places are disjoint, so only the one that starts last before `from` can reach into the range from below.
  if (at != places_.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second.size > from) at = before;
  }
  for (; at != places_.end() && at->first < to; ++at) blocks.push_back(at->second.block);
  return blocks;
}

}  // namespace sluice
