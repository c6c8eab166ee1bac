#include "device/arena.h"

#include <algorithm>
#include <utility>

#include "device/refusal.h"

namespace sluice {

Arena::Arena(Device& device) : device_(&device), chunk_size_(chunk_size_for(device.info())) {}

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this != &other) {
    // The memory goes before its lease: the books never show less than the device holds.
    chunks_ = std::exchange(other.chunks_, {});
    shelves_ = std::exchange(other.shelves_, {});
    lease_ = std::move(other.lease_);
    device_ = std::exchange(other.device_, nullptr);
    zone_ = std::exchange(other.zone_, 0);
    chunk_size_ = std::exchange(other.chunk_size_, 0);
    shelf_bytes_ = std::exchange(other.shelf_bytes_, 0);
    generation_ = other.generation_;
    shelves_made_ = other.shelves_made_;
  }
  return *this;
}

Bytes Arena::chunk_size_for(const DeviceInfo& info) {
  // Never less than one aligned unit: a device that says 0 is asked for little and may then refuse.
  return std::max(info.max_buffer & ~(info.alignment - 1), info.alignment);
}

Result<Arena> Arena::open(Device& device, Bytes zone) {
  Arena arena(device);
  SLUICE_TRY(arena.set_zone(zone));
  return arena;
}

Status Arena::reserve(Bytes size) {
  SLUICE_ASSIGN(Lease lease, device_->ledger().reserve(Use::arena, size));
  if (lease_.size() == 0)
    lease_ = std::move(lease);
  else
    lease_.take_back(std::move(lease));
  return {};
}

void Arena::give_back(Bytes size) {
  if (size > 0) {
    const Lease gone = lease_.lend(Use::arena, size);
  }
}

Address Arena::kept_by(Bytes size) const {
  if (size == zone_) return zone_;
  // Growing or shrinking, only whole chunks below the smaller of both ends stay; a whole last chunk is one of them.
  return std::min(size, zone_) / chunk_size_ * chunk_size_;
}

Status Arena::set_zone(Bytes size) {
  if (size == zone_) return {};
  if (size >= kShelf) return fail(Code::over_budget, "a zone of " + format_bytes(size), size, kShelf);
  const Bytes before = zone_;
  const auto drop_to = [&](Bytes end) {
    while (zone_ > end) {
      const Bytes last = chunks_.back().size;
      chunks_.pop_back();
      give_back(last);
      zone_ -= last;
    }
  };
  const auto grow_to = [&](Bytes end) -> Status {
    if (zone_ >= end) return {};
    SLUICE_TRY(reserve(end - zone_));
    while (zone_ < end) {
      const Bytes bytes = std::min(chunk_size_, end - zone_);
      auto chunk = device_->allocate(bytes);
      if (!chunk) {
        give_back(end - zone_);
        return fail(with_buffers(*device_, std::move(chunk).error()));
      }
      zone_ += bytes;
      chunks_.push_back({bytes, *std::move(chunk)});
    }
    return {};
  };
  ++generation_;
  drop_to(kept_by(size));
  const Address kept = zone_;
  auto done = grow_to(size);
  if (!done) {
    drop_to(kept);
    (void)grow_to(before);  // refused as well: the zone stays short, and the next caller asks for what it needs
  }
  return done;
}

Result<Arena::Shelf> Arena::add_shelf(Bytes size) {
  if (size == 0) return fail(Code::invalid_argument, "a shelf of 0 bytes");
  SLUICE_TRY(reserve(size));
  auto buffer = device_->allocate(size);
  if (!buffer) {
    give_back(size);
    return fail(with_buffers(*device_, std::move(buffer).error()));
  }
  const Address base = ++shelves_made_ * kShelf;
  shelves_.emplace(base, Buffer{size, *std::move(buffer)});
  shelf_bytes_ += size;
  return Shelf{base, size};
}

void Arena::remove_shelf(Address base) {
  const auto found = shelves_.find(base);
  if (found == shelves_.end()) return;
  const Bytes size = found->second.size;
  shelves_.erase(found);
  give_back(size);
  shelf_bytes_ -= size;
}

std::vector<Arena::Shelf> Arena::shelves() const {
  std::vector<Shelf> list;
  for (const auto& [base, shelf] : shelves_) list.push_back({base, shelf.size});
  return list;
}

Arena::Spot Arena::find(Address address) const {
  if (on_shelf(address)) {
    auto it = shelves_.upper_bound(address);
    if (it == shelves_.begin()) return {};
    --it;
    const Bytes offset = address - it->first;
    if (offset >= it->second.size) return {};
    return {it->second.buffer.get(), offset, it->second.size - offset};
  }
  if (address > zone_ || chunks_.empty()) return {};
  // An empty tensor at the very end lies in no chunk; the last one will do.
  const std::size_t index = std::min<std::size_t>(address / chunk_size_, chunks_.size() - 1);
  const Bytes offset = address - index * chunk_size_;
  return {chunks_[index].buffer.get(), offset, chunks_[index].size - offset};
}

Status Arena::bind(ggml_tensor* tensor, Address address) const {
  const std::string name = tensor->name;
  if (tensor->buffer || tensor->data || tensor->view_src)
    return fail(Code::invalid_argument, "tensor '" + name + "' has memory already or is a view");
  if (size() == 0) return fail(Code::invalid_argument, "tensor '" + name + "' cannot be bound: the arena is empty");
  if (address % device_->info().alignment != 0)
    return fail(Code::invalid_argument, "tensor '" + name + "' at " + std::to_string(address) + " is not aligned to " +
                                            std::to_string(device_->info().alignment) + " bytes");
  const Bytes bytes = ggml_backend_buft_get_alloc_size(device_->buffer_type(), tensor);
  const Bytes end = on_shelf(address) ? 0 : zone_;
  if (!on_shelf(address) && (address > zone_ || bytes > zone_ - address))
    return fail(Code::invalid_argument, "tensor '" + name + "' ends beyond the arena", address + bytes, end);
  const Spot spot = find(address);
  if (!spot.buffer) return fail(Code::invalid_argument, "tensor '" + name + "' lies in no buffer");
  if (bytes > spot.left)
    return fail(Code::invalid_argument, "tensor '" + name + "' crosses the end of a buffer", bytes, spot.left);
  auto* base = static_cast<char*>(ggml_backend_buffer_get_base(spot.buffer));
  if (ggml_backend_tensor_alloc(spot.buffer, tensor, base + spot.offset) != GGML_STATUS_SUCCESS)
    return fail(Code::device_failed, device_->info().name + " could not bind tensor '" + name + "'");
  return {};
}

void Arena::discard(Address address, Bytes size) const {
  while (size > 0) {
    const Spot spot = find(address);
    if (!spot.buffer || spot.left == 0) return;
    const Bytes piece = std::min(size, spot.left);
    device_->discard(spot.buffer, spot.offset, piece);
    address += piece;
    size -= piece;
  }
}

}  // namespace sluice
