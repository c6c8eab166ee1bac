#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/ledger.h"

namespace sluice {

/// Which images of a component are kept in `room` bytes (none: unlimited): all if all fit; else, in sweep order, those that fit
/// beside one staging buffer for the largest image, since what is not kept must pass through one. Empty images are never kept.
/// Pure.
std::vector<bool> choose_kept(std::span<const Bytes> sizes, std::optional<Bytes> room);

/// Host copies of one component's images: booked when the component is registered, so that "needs no staging" is a fact the
/// plan can rest on; allocated and filled at first use. Thread safe for distinct blocks.
class HostImages {
 public:
  /// Books what choose_kept says, once, before any use. What the ledger refuses all the same (others booked meanwhile) is not
  /// kept.
  void book(Ledger& ledger, std::span<const Bytes> sizes);

  /// Whether the block's image is kept, or will be from its first use on.
  bool booked(std::size_t block) const;
  std::size_t booked_blocks() const;
  /// The kept image, if it has been made.
  std::optional<std::span<const std::byte>> find(std::size_t block) const;
  /// Takes over the finished image of a booked block.
  std::span<const std::byte> keep(std::size_t block, std::unique_ptr<HostBuffer> image);
  /// Gives the booking back: this block is read at each use from now on.
  void renounce(std::size_t block);
  /// Bytes of images made so far.
  Bytes bytes() const;

 private:
  struct Entry {
    bool booked = false;
    Bytes size = 0;
    Lease lease;  // declared before the memory it stands for, so given back after it
    std::unique_ptr<HostBuffer> image;
  };
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace sluice
