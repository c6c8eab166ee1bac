#pragma once

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "base/cancel.h"
#include "base/log.h"
#include "device/arena.h"
#include "residency/place_table.h"
#include "residency/room.h"
#include "residency/weight_store.h"

namespace sluice {

/// Why something left the device.
enum class Leaving {
  room,       ///< another block was to have its place
  workspace,  ///< a stage works where it lay
  pressure,   ///< the budget became smaller
  idle,       ///< nobody asked for anything for a while
  closed,     ///< its component went, or moved to another device
  lost,       ///< it was to get another place and could not be carried there: no host memory for it, or a copy failed
};
std::string_view leaving_name(Leaving why);

/// Something that came to the device or left it. For logs, counters and tests.
struct Move {
  enum class Kind {
    loaded,         ///< a resident's bytes are there
    given_up,       ///< a block left; a host copy remains
    demoted,        ///< a block left that is now in its file alone
    moved,          ///< a block got another place on the device: free bytes lay too scattered
    booked,         ///< a block is used in place from a mapping
    unbooked,       ///< and no more
    cache_dropped,  ///< a session's cache
  };
  Kind kind = Kind::loaded;
  BlockId block;
  Bytes size = 0;
  Leaving why = Leaving::room;
};

/// The memory of one device as everything that runs there shares it: its arena, who has a place in it, and how room is made.
/// The budget counts zone + shelves + weights used in place + the backend's account + its part of weights whose rows are spread
/// over several devices, which are the store's and never leave.
///
/// Room is made only as far as needed, in this order: the zone shrinks to what is asked (idle workspaces), bookings of idle
/// components, caches, blocks of the request's own components that its plan streams, blocks of other components that have a
/// host copy, then those that have none (demotion). Where bytes suffice and lie too scattered, blocks are moved over the host.
/// Among components the least recently used first; within one the latest next use first. Never: blocks in use or in flight,
/// held, required by the request, not loaded or merged.
///
/// Threads: any. One request at a time has the device (`Turn`).
class DeviceMemory {
 public:
  struct Options {
    std::optional<Bytes> budget;  ///< none: unlimited
    LogSink log = {};
    std::function<void(const Move&)> on_move = {};  ///< called with the lock held: must not call back
    std::size_t index = 0;                          ///< which of the store's devices this is
  };
  /// Both outlive it.
  DeviceMemory(Device& device, WeightStore& store, Options options);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  Device& device() { return device_; }
  const Device& device() const { return device_; }

  struct GiveTurnBack {
    void operator()(DeviceMemory* memory) const { memory->end_turn(); }
  };
  /// The right to use the device; goes with the value.
  using Turn = std::unique_ptr<DeviceMemory, GiveTurnBack>;
  /// Waits until nobody else has the device. Errors: cancelled.
  Result<Turn> take_turn(const CancelToken& cancel);

  std::optional<Bytes> budget() const;
  /// Applies from the next `admit` or `relieve` on.
  void set_budget(std::optional<Bytes> budget);
  /// Bytes taken that are ours: arena, bookings, the backend's account and the part of spread rows.
  Bytes taken() const;
  /// Bytes that a request's plan cannot use: the backend's account, spread rows, and blocks that cannot leave, but for
  /// `planned`.
  Bytes set_aside(Bytes backend, const std::set<BlockId>& planned) const;
  /// Whether such a block lies in the zone below `end`.
  bool pinned_below(Address end) const;
  Bytes zone() const;
  Bytes backend() const { return share_.backend(); }
  /// What the backend was found to hold once it ran. If that is more than was booked it is booked where there is room, and
  /// counts for every plan from now on either way. Whether it is more.
  bool note_backend(Bytes found);

  /// A block that a request's plan keeps on the device.
  struct Wanted {
    enum class Where { shelf, zone, booked };
    BlockId block;
    Bytes size = 0;  ///< multiple of the alignment
    Where where = Where::shelf;
    Address at = 0;  ///< in the zone
  };
  struct Need {
    Bytes zone = 0;       ///< its zone: what its stages work in and the residents in their lee
    Bytes workspace = 0;  ///< of that, from its start: what some stage of it works over
    Bytes backend = 0;
    Bytes chunk = 0;                      ///< the zone's chunks are a multiple of this; 0: of what the device prefers
    std::vector<ComponentId> components;  ///< the request's
    std::vector<Wanted> wanted;           ///< the first to be kept first
  };
  /// Makes room and allocates everything a request needs before its first step: the zone, a place on a shelf for each wanted
  /// block that has none, bookings. What is there already stays where it is. Where the driver refuses memory that the budget
  /// allows, late frees are waited for, caches dropped, and it is tried again (device/refusal.h). All or nothing:
  /// after an error the ledger is as before, less what was given up for the attempt. Errors: over_budget, device_oom.
  Status admit(const Need& need);
  /// Bytes of blocks that `admit` would give up, or that the request would work over. Errors: over_budget.
  Result<Bytes> price(const Need& need) const;

  /// The block's place on a shelf or in the zone; its bytes may not be there yet.
  std::optional<Address> place(BlockId block) const;
  /// Where the block's bytes are, if they are on the device.
  std::optional<Address> resident(BlockId block) const;
  /// A copy of the block is complete. What lay in these bytes before is given up.
  void set_resident(BlockId block, Address address);
  /// Gives up what lies in [from, to) of the zone or reaches into it.
  void clear_zone(Address from, Address to, Leaving why);
  void give_up(BlockId block, Leaving why);
  /// Host memory for images that are put together at each use: at least `size` bytes, kept until `unload`. Errors: over_budget
  /// (the host's), device_oom; what there was before is gone then.
  Status reserve_staging(Bytes size);
  std::span<std::byte> staging() { return staging_.buffer ? staging_.buffer->bytes() : std::span<std::byte>{}; }
  /// Stamps the component as used now.
  void touch(ComponentId component);
  /// Places that were assigned and never filled are free again, and shelves without anything are freed.
  void trim();

  /// Gives up what the budget no longer allows, outside any request. Blocks that cannot leave stay.
  void relieve();
  /// Gives up what has to leave for `size` bytes of weights whose rows are spread and that are about to be loaded, and books
  /// what the backend takes beside them. Errors: over_budget (what cannot leave is too much).
  Status make_way(Bytes size, Bytes backend);
  /// Gives up everything that can leave, and the zone.
  void unload(Leaving why);
  /// Makes the zone smaller again after a request that failed. Allocates the zone's last part.
  void restore_zone(Bytes size);
  /// Whose plans rest on a component. When the last user is gone, its copies go, but for blocks that are held; while somebody
  /// has the device, at the end of that turn.
  void use(ComponentId component, const void* user);
  void unuse(const void* user);
  /// Gives up all copies of a component, but for blocks that are held; while somebody has the device, at the end of that turn.
  /// The caller knows that no plan rests on them.
  void forget(ComponentId component);
  /// How large a zone somebody who is still there has last needed; on 0 the claim is gone. The zone shrinks to the largest
  /// claim, without allocating.
  void claim_zone(const void* owner, Bytes size);

  /// A tensor that its owner keeps between runs and can make again: leased, placed on a shelf, dropped when room is needed.
  /// Returns its key. Errors: over_budget, device_oom; nothing but caches is given up for one.
  Result<BlockId> add_cache(Bytes size);
  /// Where it is, unless it was dropped. Counts as a use.
  std::optional<Address> find_cache(BlockId key);
  void drop_cache(BlockId key);

  /// For reports and tests: everything that has a place or is booked, by address.
  struct Occupant {
    BlockId block;
    Address at = 0;
    Bytes size = 0;
    bool loaded = false, booked = false, cache = false;
  };
  std::vector<Occupant> occupants() const;
  /// For binding tensors. Changes only in `admit`, `trim`, `relieve`, `unload`, `forget`, `claim_zone` and with caches.
  const Arena& arena() const { return arena_; }
  /// Bytes lent to the stage that runs, by use.
  void lend(Use use, Bytes bytes);
  void take_back_lent();

  struct Counters {
    std::uint64_t evictions = 0, demotions = 0, caches_dropped = 0;  ///< blocks, blocks, caches
    Bytes given_up = 0;                                              ///< bytes of them
  };
  Counters counters() const;

 private:
  struct Decision;
  struct Luggage;
  void end_turn();
  void settle_if_free();
  /// Does what had to wait for the end of a turn: under turn_mutex_.
  void settle();
  static bool is_cache(BlockId block) { return block.component >= kCaches; }
  // With the lock held:
  bool can_leave(BlockId block) const;
  void leave(BlockId block, Leaving why);
  std::vector<Occupant> list() const;
  /// The budget beside the backend's account; without a budget more than there can be.
  Bytes capacity_beside(Bytes backend) const;
  Bytes taken_beside_backend() const;
  /// What may leave for a request of these components that wants these blocks, in order; what stays goes into `stay`, and in
  /// parallel into `staying`.
  std::vector<Occupant> in_order(const std::vector<ComponentId>& mine, const std::map<BlockId, Wanted>& wanted,
                                 std::vector<RoomOccupant>& stay, std::vector<Occupant>& staying) const;
  Luggage pack(const RoomAnswer& room, const std::vector<Occupant>& leaving, const std::vector<Occupant>& staying,
               const std::vector<Occupant>& carried);
  void unpack(Luggage& luggage, const std::vector<Arena::Shelf>& fresh);
  bool copy(Address at, std::span<std::byte> bytes, bool to_device);
  void relieve_to(Bytes capacity);
  RoomQuestion question(Bytes capacity, Bytes zone) const;
  /// Whether what is planned for the need's chunks, and so crosses none of their ends, crosses none of the arena's either.
  bool fits_chunks(const Need& need) const;
  Result<Decision> decide(const Need& need) const;
  Status carry_out(const Need& need, const Decision& decision);
  Status allocate(const std::function<Status()>& attempt);
  void drop_caches();
  void drop_unfilled();
  void forget_component(ComponentId component);
  void drop_staging();
  void leave_zone(Address from, Address to, Leaving why);
  Bytes backend_account() const { return std::max(share_.backend(), found_backend_); }
  Status resize_zone(Bytes size);
  void free_empty_shelves();

  static constexpr ComponentId kCaches = 0x80000000;  // caches are blocks of components from here on
  Device& device_;
  WeightStore& store_;
  const Options options_;
  Share share_;  // of the device's ledger

  mutable std::mutex mutex_;  // guards what follows
  std::optional<Bytes> budget_;
  Bytes found_backend_ = 0;  // see note_backend
  Arena arena_;
  std::vector<Lease> lent_;
  PlaceTable places_;
  std::map<BlockId, Lease> booked_;
  std::map<ComponentId, std::uint64_t> used_;  // when a component was last used
  std::uint64_t now_ = 0;
  std::uint32_t caches_made_ = 0;
  std::map<const void*, Bytes> claims_;
  std::map<ComponentId, std::set<const void*>> users_;
  std::set<ComponentId> to_forget_;  // as soon as nobody has the device
  bool shrink_ = false;              // a claim is gone: the zone may shrink then
  Lease staging_lease_;              // on the store's host ledger; before the memory, so returned after it
  HostPiece staging_;
  Counters counters_;

  std::mutex turn_mutex_;
  std::condition_variable turn_changed_;
  bool turn_taken_ = false;
};

}  // namespace sluice
