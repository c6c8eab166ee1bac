#pragma once

#include <map>
#include <vector>

#include "device/device.h"

namespace sluice {

/// A place in an arena. Below kShelf: bytes from the start of the zone. From there on: a shelf's base plus bytes into it.
using Address = Bytes;

/// Everything that is allocated on a device, shared by all that run there. Two kinds of memory:
/// - the **zone** [0, zone()): slots, state and workspace of the stage that runs, and residents in the part that a stage with a
///   smaller need leaves. Chunk i covers [i × chunk_size, (i + 1) × chunk_size); no object crosses a chunk's end. The last
///   chunk is exactly the remainder.
/// - **shelves**, one buffer each of any size up to a chunk: residents that no stage works over. Each is freed by itself.
/// The number of buffers is bounded by who adds shelves, never by the number of blocks. All bytes are leased as Use::arena.
/// Goes before its device. Threads: `bind` and `discard` from any, on disjoint bytes; the rest from one.
class Arena {
 public:
  /// An empty arena.
  explicit Arena(Device& device);
  /// An arena with a zone. Errors: over_budget, device_oom (nothing is kept).
  static Result<Arena> open(Device& device, Bytes zone);
  /// No-op value: size 0.
  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  /// Shelves lie at multiples of this, so no two addresses of different buffers are ever neighbours.
  static constexpr Address kShelf = Bytes{1} << 40;
  static bool on_shelf(Address address) { return address >= kShelf; }

  /// Bytes allocated: zone and shelves.
  Bytes size() const { return zone_ + shelf_bytes_; }
  Bytes zone() const { return zone_; }
  Bytes chunk_size() const { return chunk_size_; }
  /// The chunk size an arena on this device would have: info().max_buffer rounded down to the alignment.
  static Bytes chunk_size_for(const DeviceInfo& info);

  /// Makes the zone `size` bytes. Whole chunks that stay keep their bytes; a last chunk of another size than before is a new
  /// one. Errors: over_budget, device_oom; the zone is then as large as before, with a last chunk that may be new, or, where
  /// even that is refused, without one.
  Status set_zone(Bytes size);
  /// Larger chunks, for an object that is larger than the device's preferred buffer: the device may give one all the same.
  /// `size` is a multiple of chunk_size_for; the zone is empty.
  void set_chunk_size(Bytes size) { chunk_size_ = size; }
  /// First byte of the zone that `set_zone(size)` would not keep.
  Address kept_by(Bytes size) const;
  /// Counts up whenever a chunk of the zone goes or comes: what was bound in the zone before has to be bound anew.
  int generation() const { return generation_; }

  struct Shelf {
    Address base = 0;
    Bytes size = 0;
  };
  /// Leases and allocates a shelf of `size` bytes (at most chunk_size_for, or a single object's). Errors: over_budget,
  /// device_oom, invalid_argument (0 bytes).
  Result<Shelf> add_shelf(Bytes size);
  /// Frees the shelf at `base`.
  void remove_shelf(Address base);
  /// By address.
  std::vector<Shelf> shelves() const;

  /// Gives `tensor` (no memory yet, not a view) its place. The address must be aligned and the tensor, with the padding its
  /// buffer type asks for, inside one buffer. Errors: invalid_argument where one of these is not so; device_failed.
  Status bind(ggml_tensor* tensor, Address address) const;
  /// Tells the device that these bytes mean nothing any more. Bytes that are in no buffer are ignored.
  void discard(Address address, Bytes size) const;
  /// The lease behind the arena, to lend bytes from by use.
  Lease& lease() { return lease_; }

 private:
  struct Buffer {
    Bytes size = 0;
    DeviceBuffer buffer;
  };
  struct Spot {
    ggml_backend_buffer_t buffer = nullptr;
    Bytes offset = 0, left = 0;  // bytes from `offset` to the buffer's end
  };
  Spot find(Address address) const;
  Status reserve(Bytes size);
  void give_back(Bytes size);

  Device* device_ = nullptr;
  Bytes zone_ = 0, chunk_size_ = 0, shelf_bytes_ = 0;
  int generation_ = 0;
  std::uint64_t shelves_made_ = 0;
  Lease lease_;  // declared before the buffers, so given back after the memory is gone
  std::vector<Buffer> chunks_;
  std::map<Address, Buffer> shelves_;
};

}  // namespace sluice
