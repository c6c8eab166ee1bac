#include "device/arena.h"

#include <algorithm>
#include <utility>

namespace sluice {

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this != &other) {
    // The memory goes before its lease: the books never show less than the device holds.
    chunks_ = std::exchange(other.chunks_, {});
    lease_ = std::move(other.lease_);
    device_ = std::exchange(other.device_, nullptr);
    size_ = std::exchange(other.size_, 0);
    chunk_size_ = std::exchange(other.chunk_size_, 0);
  }
  return *this;
}

Bytes Arena::chunk_size_for(const DeviceInfo& info) {
  // Never less than one aligned unit: a device that says 0 is asked for little and may then refuse.
  return std::max(info.max_buffer & ~(info.alignment - 1), info.alignment);
}

Result<Arena> Arena::open(Device& device, Bytes size) {
  Arena arena;
  arena.device_ = &device;
  arena.size_ = size;
  arena.chunk_size_ = chunk_size_for(device.info());
  SLUICE_ASSIGN(arena.lease_, device.ledger().reserve(Use::arena, size));
  for (Bytes at = 0; at < size; at += arena.chunk_size_) {
    SLUICE_ASSIGN(auto chunk, device.allocate(std::min(arena.chunk_size_, size - at)));
    arena.chunks_.push_back(std::move(chunk));
  }
  return arena;
}

Status Arena::bind(ggml_tensor* tensor, Address address) const {
  const std::string name = tensor->name;
  if (tensor->buffer || tensor->data || tensor->view_src)
    return fail(Code::invalid_argument, "tensor '" + name + "' has memory already or is a view");
  if (chunks_.empty()) return fail(Code::invalid_argument, "tensor '" + name + "' cannot be bound: the arena is empty");
  if (address % device_->info().alignment != 0)
    return fail(Code::invalid_argument, "tensor '" + name + "' at " + std::to_string(address) + " is not aligned to " +
                                            std::to_string(device_->info().alignment) + " bytes");
  const Bytes bytes = ggml_backend_buft_get_alloc_size(device_->buffer_type(), tensor);
  if (address > size_ || bytes > size_ - address)
    return fail(Code::invalid_argument, "tensor '" + name + "' ends beyond the arena", address + bytes, size_);
  const Bytes within = address % chunk_size_;
  if (bytes > chunk_size_ - within)
    return fail(Code::invalid_argument, "tensor '" + name + "' crosses the end of a buffer of " + format_bytes(chunk_size_),
                bytes, chunk_size_ - within);
  // An empty tensor at the very end lies in no chunk; the last one will do.
  const std::size_t index = std::min<std::size_t>(address / chunk_size_, chunks_.size() - 1);
  ggml_backend_buffer_t buffer = chunks_[index].get();
  auto* base = static_cast<char*>(ggml_backend_buffer_get_base(buffer));
  if (ggml_backend_tensor_alloc(buffer, tensor, base + (address - index * chunk_size_)) != GGML_STATUS_SUCCESS)
    return fail(Code::device_failed, device_->info().name + " could not bind tensor '" + name + "'");
  return {};
}

void Arena::discard(Address address, Bytes size) const {
  if (address >= size_) return;
  const Address end = address + std::min(size, size_ - address);
  while (address < end) {
    const std::size_t index = static_cast<std::size_t>(address / chunk_size_);
    const Bytes piece = std::min(end - address, (index + 1) * chunk_size_ - address);
    device_->discard(chunks_[index].get(), address - index * chunk_size_, piece);
    address += piece;
  }
}

}  // namespace sluice
