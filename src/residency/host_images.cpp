#include "residency/host_images.h"

#include <algorithm>
#include <cassert>
#include <utility>

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

Taking choose_taken(std::optional<Bytes> free, std::span<const Bytes> wanted, std::span<const Bytes> idle, Bytes passing) {
  Taking taking{std::vector<bool>(wanted.size(), false), 0};
  if (!free) {
    for (std::size_t i = 0; i < wanted.size(); ++i) taking.kept[i] = wanted[i] > 0;
    return taking;
  }
  // With the first n of `idle` taken there are `room` bytes, of which `through` stay for what passes.
  struct Offer {
    Bytes room, through;
  };
  std::vector<Offer> offers{{*free, passing}};
  for (const Bytes size : idle) offers.push_back({offers.back().room + size, std::max(offers.back().through, size)});

  Bytes sum = 0, largest = 0;
  for (const Bytes size : wanted) {
    sum += size;
    largest = std::max(largest, size);
  }
  if (sum == 0) return taking;
  Bytes kept = sum, through = 0;
  const auto enough = [&](const Offer& offer) {
    return offer.room >= kept && offer.room - kept >= std::max(offer.through, through);
  };
  if (std::any_of(offers.begin(), offers.end(), enough)) {
    for (std::size_t i = 0; i < wanted.size(); ++i) taking.kept[i] = wanted[i] > 0;
  } else {
    const Offer& most = offers.back();
    Bytes left = most.room - std::min(most.room, std::max(most.through, largest));
    kept = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] > 0 && wanted[i] <= left) {
        taking.kept[i] = true;
        kept += wanted[i];
        left -= wanted[i];
      } else {
        through = std::max(through, wanted[i]);
      }
    }
    if (!enough(most)) {
      // Too little for what passes through, whatever is kept. What the component itself needs is all that is worth taking for.
      taking.kept.assign(wanted.size(), false);
      const auto runs = std::find_if(offers.begin(), offers.end(), [&](const Offer& o) { return o.room >= largest; });
      if (runs != offers.end()) taking.taken = static_cast<std::size_t>(runs - offers.begin());
      return taking;
    }
  }
  while (taking.taken < idle.size() && !enough(offers[taking.taken])) ++taking.taken;
  return taking;
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

bool HostImages::book(Ledger& ledger, std::size_t block) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[block];
  assert(!entry.booked && entry.size > 0);
  auto lease = ledger.reserve(Use::images, entry.size);
  if (!lease) return false;
  entry.lease = *std::move(lease);
  entry.booked = true;
  return true;
}

void HostImages::resize(std::size_t block, Bytes size) {
  const std::lock_guard lock(mutex_);
  assert(!entries_[block].booked);
  entries_[block].size = size;
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
  if (block >= entries_.size() || !entries_[block].image.buffer) return std::nullopt;
  return entries_[block].image.buffer->bytes().first(entries_[block].size);
}

void HostImages::touch(std::size_t block, std::uint64_t now) {
  const std::lock_guard lock(mutex_);
  if (block < entries_.size()) entries_[block].last_use = std::max(entries_[block].last_use, now);
}

std::uint64_t HostImages::last_use(std::size_t block) const {
  const std::lock_guard lock(mutex_);
  return block < entries_.size() ? entries_[block].last_use : 0;
}

std::span<const std::byte> HostImages::keep(std::size_t block, HostPiece image) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[block];
  assert(entry.booked && !entry.image.buffer && image.buffer->bytes().size() >= entry.size);
  entry.image = std::move(image);
  return entry.image.buffer->bytes().first(entry.size);
}

HostImages::Kept HostImages::renounce(std::size_t block) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[block];
  Kept gone{std::move(entry.lease), std::move(entry.image), entry.booked ? entry.size : 0};
  entry.lease = Lease();
  entry.image = HostPiece();
  entry.booked = false;
  entry.last_use = 0;
  return gone;
}

HostPiece HostImages::unmake(std::size_t block) {
  const std::lock_guard lock(mutex_);
  entries_[block].last_use = 0;
  return std::exchange(entries_[block].image, HostPiece());
}

Bytes HostImages::bytes() const {
  const std::lock_guard lock(mutex_);
  Bytes sum = 0;
  for (const Entry& entry : entries_)
    if (entry.image.buffer) sum += entry.size;
  return sum;
}

}  // namespace sluice
