#include "residency/place_table.h"

namespace sluice {

std::optional<PlaceTable::Place> PlaceTable::find(BlockId block) const {
  const auto at = addresses_.find(block);
  if (at == addresses_.end()) return std::nullopt;
  return places_.at(at->second);
}

void PlaceTable::put(BlockId block, Address address, Bytes size, bool loaded) {
  erase(block);
  for (const Place& other : overlapping(address, address + size)) erase(other.block);
  if (size == 0) return;
  places_[address] = {block, address, size, loaded};
  addresses_[block] = address;
}

void PlaceTable::erase(BlockId block) {
  const auto at = addresses_.find(block);
  if (at == addresses_.end()) return;
  places_.erase(at->second);
  addresses_.erase(at);
}

std::vector<PlaceTable::Place> PlaceTable::overlapping(Address from, Address to) const {
  std::vector<Place> found;
  if (from >= to) return found;
  auto at = places_.upper_bound(from);
  // Places are disjoint, so only the one that starts last before `from` can reach into the range from below.
  if (at != places_.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second.size > from) at = before;
  }
  for (; at != places_.end() && at->first < to; ++at) found.push_back(at->second);
  return found;
}

std::vector<PlaceTable::Place> PlaceTable::all() const {
  std::vector<Place> places;
  for (const auto& [at, place] : places_) places.push_back(place);
  return places;
}

}  // namespace sluice
