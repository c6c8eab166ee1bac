#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/ledger.h"
#include "residency/host_pool.h"

namespace sluice {

/// Which images of a component are kept in `room` bytes (none: unlimited): all if all fit; else, in sweep order, those that fit
/// beside one staging buffer for the largest image, since what is not kept must pass through one. Empty images are never kept.
/// Pure.
std::vector<bool> choose_kept(std::span<const Bytes> sizes, std::optional<Bytes> room);

/// What a component gets beside what it has, and how many of those that nobody uses go for it.
struct Taking {
  std::vector<bool> kept;  ///< parallel to `wanted`
  std::size_t taken = 0;   ///< the first of `idle`
};
/// `free`: bytes nobody has booked (none: unlimited); `wanted`: images the component does not keep yet, in sweep order;
/// `idle`: bookings that may be taken, in that order; `passing`: the largest image of anybody that is not kept and has to pass
/// through a staging buffer, for which room stays, as it does for what is not kept by this decision. No more is taken than
/// what is kept needs. Pure.
Taking choose_taken(std::optional<Bytes> free, std::span<const Bytes> wanted, std::span<const Bytes> idle, Bytes passing);

/// Host copies of one component's images: booked before they are made, so that "needs no staging" is a fact that a plan can
/// rest on; allocated and filled at first use. Thread safe for distinct blocks.
class HostImages {
 public:
  /// A booking and its image, on their way out.
  struct Kept {
    Lease lease;  // declared before the memory it stands for, so given back after it
    HostPiece piece;
    Bytes size = 0;
  };

  /// Books what choose_kept says, once, before any use. What the ledger refuses all the same (others booked meanwhile) is not
  /// kept.
  void book(Ledger& ledger, std::span<const Bytes> sizes);
  /// Books one more. False where the ledger refuses.
  bool book(Ledger& ledger, std::size_t block);
  /// The block's image will have another size. It has no booking.
  void resize(std::size_t block, Bytes size);

  /// Whether the block's image is kept, or will be from its first use on.
  bool booked(std::size_t block) const;
  std::size_t booked_blocks() const;
  /// The kept image, if it has been made.
  std::optional<std::span<const std::byte>> find(std::size_t block) const;
  /// Notes that the image was used at the moment `now`, which only grows.
  void touch(std::size_t block, std::uint64_t now);
  /// 0: never used since it was booked.
  std::uint64_t last_use(std::size_t block) const;
  /// Takes over the finished image of a booked block.
  std::span<const std::byte> keep(std::size_t block, HostPiece image);
  /// Gives the booking back, with the image where there is one: this block is read at each use from now on.
  Kept renounce(std::size_t block);
  /// Gives the image back and keeps the booking.
  HostPiece unmake(std::size_t block);
  /// Bytes of images made so far.
  Bytes bytes() const;

 private:
  struct Entry {
    bool booked = false;
    Bytes size = 0;
    std::uint64_t last_use = 0;
    Lease lease;  // declared before the memory it stands for, so given back after it
    HostPiece image;
  };
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace sluice
