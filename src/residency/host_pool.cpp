#include "residency/host_pool.h"

#include "base/host_memory.h"
#include "device/ggml_device.h"

namespace sluice {
namespace {

std::optional<Bytes> half_of_memory() {
  const HostMemory host = host_memory();
  if (!host.known) return std::nullopt;
  return host.total / 2;
}

}  // namespace

HostPool::HostPool(std::optional<Bytes> budget, std::optional<Bytes> pinned_budget)
    : all_(budget), pinned_(pinned_budget ? pinned_budget : half_of_memory()) {}

Result<HostPiece> HostPool::allocate(Device& device, Use use, Bytes size) {
  HostPiece piece;
  // A CPU device has nothing to pin for.
  if (device.info().kind == DeviceKind::cpu) {
    SLUICE_ASSIGN(piece.buffer, device.allocate_host(size));
    return piece;
  }
  auto lease = pinned_.reserve(use, size);
  if (!lease) {
    SLUICE_ASSIGN(piece.buffer, allocate_pageable(device.info().name, size));
    return piece;
  }
  SLUICE_ASSIGN(piece.buffer, device.allocate_host(size));
  if (piece.buffer->pinned()) piece.pinned = *std::move(lease);
  return piece;
}

}  // namespace sluice
