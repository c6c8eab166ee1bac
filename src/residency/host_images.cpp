#include "residency/host_images.h"

#include <algorithm>
#include <cassert>

namespace sluice {

std::vector<bool> choose_kept(std::span<const Bytes> sizes, std::optional<Bytes> room) {
  std::vector<bool> kept(sizes.size(), false);
  Bytes largest = 0, sum = 0;
  for (Bytes size : sizes) {
    largest = std::max(largest, size);
    sum += size;
  }
  const bool all = !room || sum <= *room;
  Bytes left = all ? sum : *room - std::min(*room, largest);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0 || sizes[i] > left) continue;
    kept[i] = true;
    left -= sizes[i];
  }
  return kept;
}

void HostImages::book(Ledger& ledger, std::span<const Bytes> sizes) {
  const std::lock_guard lock(mutex_);
  entries_ = std::vector<Entry>(sizes.size());
  const LedgerReport report = ledger.report();
  std::optional<Bytes> room;
  if (report.limit) room = *report.limit - std::min(*report.limit, report.total + report.backend);
  const auto kept = choose_kept(sizes, room);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    entries_[i].size = sizes[i];
    if (!kept[i]) continue;
    auto lease = ledger.reserve(Use::images, sizes[i]);
    if (!lease) continue;
    entries_[i].lease = *std::move(lease);
    entries_[i].booked = true;
  }
}

bool HostImages::booked(std::size_t block) const {
  const std::lock_guard lock(mutex_);
  return block < entries_.size() && entries_[block].booked;
}

std::size_t HostImages::booked_blocks() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(entries_.begin(), entries_.end(), [](const Entry& e) { return e.booked; }));
}

std::optional<std::span<const std::byte>> HostImages::find(std::size_t block) const {
  const std::lock_guard lock(mutex_);
  if (block >= entries_.size() || !entries_[block].image) return std::nullopt;
  return entries_[block].image->bytes().first(entries_[block].size);
}

std::span<const std::byte> HostImages::keep(std::size_t block, std::unique_ptr<HostBuffer> image) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[block];
  assert(entry.booked && !entry.image && image->bytes().size() >= entry.size);
  entry.image = std::move(image);
  return entry.image->bytes().first(entry.size);
}

void HostImages::renounce(std::size_t block) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[block];
  entry.image.reset();
  entry.booked = false;
  entry.lease = Lease();
}

Bytes HostImages::bytes() const {
  const std::lock_guard lock(mutex_);
  Bytes sum = 0;
  for (const Entry& entry : entries_)
    if (entry.image) sum += entry.size;
  return sum;
}

}  // namespace sluice
