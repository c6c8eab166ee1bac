#include "residency/device_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <tuple>

#include "device/refusal.h"

namespace sluice {
namespace {

// A cancel wakes nobody, so whoever waits for the device looks at it this often.
constexpr std::chrono::milliseconds kCancelPoll{20};
// Shelves beside those that are as large as a buffer can be: usually, and at most. Drivers bound the number of buffers.
constexpr Bytes kFewShelves = 6, kManyShelves = 24;
constexpr Bytes kUnlimited = Bytes{1} << 60;

}  // namespace

std::string_view leaving_name(Leaving why) {
  switch (why) {
    case Leaving::room: return "another block is to have its place";
    case Leaving::workspace: return "its place becomes workspace";
    case Leaving::pressure: return "the budget became smaller";
    case Leaving::idle: return "nothing was asked for a while";
    case Leaving::closed: return "its component went";
    case Leaving::lost: return "it could not be carried to another place";
  }
  return "";
}

DeviceMemory::DeviceMemory(Device& device, WeightStore& store, Options options)
    : device_(device),
      store_(store),
      options_(std::move(options)),
      share_(device.ledger(), options_.budget),
      budget_(options_.budget),
      arena_(device) {}

DeviceMemory::~DeviceMemory() { take_back_lent(); }

void DeviceMemory::end_turn() {
  const std::lock_guard turn_lock(turn_mutex_);
  settle();
  turn_taken_ = false;
  turn_changed_.notify_one();
}

void DeviceMemory::settle_if_free() {
  const std::lock_guard turn_lock(turn_mutex_);
  if (!turn_taken_) settle();
}

void DeviceMemory::settle() {
  const std::lock_guard lock(mutex_);
  for (const ComponentId component : to_forget_) forget_component(component);
  to_forget_.clear();
  Bytes most = 0;
  for (const auto& [who, bytes] : claims_) most = std::max(most, bytes);
  if (!shrink_ || most >= arena_.zone()) return;
  shrink_ = false;
  const Bytes end = most == 0 ? 0 : std::min(arena_.zone(), align_up(most, arena_.chunk_size()));
  if (end == arena_.zone()) return;
  for (const auto& place : places_.overlapping(end, Arena::kShelf))
    if (!can_leave(place.block)) return;
  leave_zone(end, Arena::kShelf, Leaving::closed);
  (void)arena_.set_zone(end);  // whole chunks go: nothing is allocated
}

Result<DeviceMemory::Turn> DeviceMemory::take_turn(const CancelToken& cancel) {
  std::unique_lock lock(turn_mutex_);
  while (turn_taken_) {
    if (cancel.cancelled()) return fail(Code::cancelled, "cancelled while waiting for " + device_.info().name);
    turn_changed_.wait_for(lock, kCancelPoll);
  }
  turn_taken_ = true;
  return Turn(this);
}

std::optional<Bytes> DeviceMemory::budget() const {
  const std::lock_guard lock(mutex_);
  return budget_;
}

void DeviceMemory::set_budget(std::optional<Bytes> budget) {
  const std::lock_guard lock(mutex_);
  budget_ = budget;
  share_.set_limit(budget);
}

Bytes DeviceMemory::taken() const {
  const std::lock_guard lock(mutex_);
  return taken_beside_backend() + share_.backend() + store_.split_on(options_.index);
}

Bytes DeviceMemory::taken_beside_backend() const {
  Bytes bytes = arena_.size();
  for (const auto& [block, lease] : booked_) bytes += lease.size();
  return bytes;
}

Bytes DeviceMemory::capacity_beside(Bytes backend) const {
  const Bytes apart = backend + store_.split_on(options_.index);
  return budget_ ? *budget_ - std::min(*budget_, apart) : kUnlimited;
}

Bytes DeviceMemory::zone() const {
  const std::lock_guard lock(mutex_);
  return arena_.zone();
}

bool DeviceMemory::can_leave(BlockId block) const {
  if (is_cache(block) || !store_.has(block.component)) return true;
  return !store_.held(block) && !store_.has_flag(block, BlockFlag::merged);
}

Bytes DeviceMemory::set_aside(Bytes backend, const std::set<BlockId>& planned) const {
  const std::lock_guard lock(mutex_);
  Bytes off = std::max(backend, backend_account()) + store_.split_on(options_.index);
  for (const Occupant& o : list())
    if (!can_leave(o.block) && !planned.contains(o.block)) off += o.size;
  return off;
}

bool DeviceMemory::note_backend(Bytes found) {
  const std::lock_guard lock(mutex_);
  if (found <= backend_account()) return false;
  found_backend_ = found;
  (void)share_.set_backend(found);  // where it does not fit, the next plan leaves room for it
  return true;
}

bool DeviceMemory::pinned_below(Address end) const {
  const std::lock_guard lock(mutex_);
  const auto places = places_.overlapping(0, end);
  return std::any_of(places.begin(), places.end(), [&](const auto& place) { return !can_leave(place.block); });
}

std::vector<DeviceMemory::Occupant> DeviceMemory::list() const {
  std::vector<Occupant> all;
  for (const auto& place : places_.all())
    all.push_back({place.block, place.at, place.size, place.loaded, false, is_cache(place.block)});
  for (const auto& [block, lease] : booked_) all.push_back({block, 0, lease.size(), true, true, false});
  return all;
}

std::vector<DeviceMemory::Occupant> DeviceMemory::occupants() const {
  const std::lock_guard lock(mutex_);
  return list();
}

std::vector<DeviceMemory::Occupant> DeviceMemory::in_order(const std::vector<ComponentId>& mine,
                                                           const std::map<BlockId, Wanted>& wanted,
                                                           std::vector<RoomOccupant>& stay,
                                                           std::vector<Occupant>& staying) const {
  enum Rank { idle_booking, cache, streamed, with_host_copy, demotion, own_elsewhere };
  using Key = std::tuple<Rank, std::uint64_t, std::uint32_t>;
  std::vector<std::pair<Key, Occupant>> leaving;
  for (const Occupant& o : list()) {
    if (!o.booked && !Arena::on_shelf(o.at)) continue;  // the zone is worked over; who lies there goes by place, not by order
    const auto plan = wanted.find(o.block);
    const bool its = std::find(mine.begin(), mine.end(), o.block.component) != mine.end();
    const bool as_planned =
        plan != wanted.end() && plan->second.where == (o.booked ? Wanted::Where::booked : Wanted::Where::shelf);
    if (!can_leave(o.block) || as_planned) {
      stay.push_back({o.at, o.size, o.booked, !o.booked});
      staying.push_back(o);
      continue;
    }
    const Rank rank = o.booked                        ? idle_booking
                      : plan != wanted.end()          ? own_elsewhere
                      : o.cache                       ? cache
                      : its                           ? streamed
                      : store_.has_host_copy(o.block) ? with_host_copy
                                                      : demotion;
    const auto used = used_.find(o.block.component);
    leaving.push_back({{rank, used == used_.end() ? 0 : used->second, UINT32_MAX - o.block.block}, o});
  }
  std::sort(leaving.begin(), leaving.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Occupant> order;
  for (const auto& [key, o] : leaving) order.push_back(o);
  return order;
}

RoomQuestion DeviceMemory::question(Bytes capacity, Bytes zone) const {
  RoomQuestion q;
  q.capacity = capacity;
  q.zone = zone;
  q.largest = Arena::chunk_size_for(device_.info());
  const Bytes full = (capacity - std::min(capacity, zone)) / q.largest;  // the zone's chunks count too
  q.shelves_usual = static_cast<std::size_t>(kFewShelves + full);
  q.shelves_at_most = static_cast<std::size_t>(kManyShelves + full);
  q.shelves = arena_.shelves();
  return q;
}

/// What `admit` is going to do.
struct DeviceMemory::Decision {
  Bytes zone = 0;
  std::vector<Occupant> leave;         // in order
  std::vector<Occupant> stay;          // parallel to the question's
  std::vector<Occupant> carried;       // out of the zone, on to shelves
  std::vector<std::size_t> to_shelve;  // indices into Need::wanted; the answer's places are theirs, then those of `carried`
  RoomAnswer room;
};

Result<DeviceMemory::Decision> DeviceMemory::decide(const Need& need) const {
  const Bytes backend = std::max(need.backend, backend_account());
  const Bytes capacity = capacity_beside(backend);
  Decision d;
  std::map<BlockId, Wanted> wanted;
  Bytes booked = 0;
  RoomQuestion q = question(capacity, std::max(arena_.zone(), need.zone));
  for (std::size_t w = 0; w < need.wanted.size(); ++w) {
    const Wanted& want = need.wanted[w];
    wanted.emplace(want.block, want);
    const auto place = places_.find(want.block);
    if (want.where == Wanted::Where::booked) {
      if (!booked_.contains(want.block)) booked += want.size;
    } else if (want.where == Wanted::Where::shelf && !(place && Arena::on_shelf(place->at))) {
      d.to_shelve.push_back(w);
      q.wanted.push_back(want.size);
    }
  }
  q.booked = booked;
  std::vector<RoomOccupant> stay;
  d.leave = in_order(need.components, wanted, stay, d.stay);
  std::vector<RoomOccupant> leave;
  for (const Occupant& o : d.leave) leave.push_back({o.at, o.size, o.booked, !o.booked});

  // What lies in the zone goes by place. What cannot leave is carried to a shelf where it is in the way.
  std::vector<PlaceTable::Place> in_zone;
  for (const auto& place : places_.overlapping(0, Arena::kShelf))
    if (!can_leave(place.block)) in_zone.push_back(place);
  const auto aim = [&](Bytes zone) {
    q.zone = zone;
    q.wanted.resize(d.to_shelve.size());
    d.carried.clear();
    const Address kept = fits_chunks(need) ? arena_.kept_by(zone) : 0;
    for (const auto& place : in_zone) {
      if (place.at >= need.workspace && place.at + place.size <= kept) continue;
      d.carried.push_back({place.block, place.at, place.size, place.loaded, false, false});
      q.wanted.push_back(place.size);
    }
    d.zone = zone;
  };
  // The zone as it is, or no larger than needed; without anybody leaving, or making room.
  q.stay = stay;
  q.stay.insert(q.stay.end(), leave.begin(), leave.end());
  const std::size_t staying = stay.size();
  for (const Bytes zone : {std::max(arena_.zone(), need.zone), need.zone}) {
    aim(zone);
    auto room = make_room(q);
    if (!room) continue;
    for (auto& moved : room->moved) {
      if (moved.index < staying) continue;
      moved.of_leave = true;
      moved.index -= staying;
    }
    d.room = *std::move(room);
    return d;
  }
  q.stay = std::move(stay);
  q.leave = std::move(leave);
  aim(need.zone);
  SLUICE_ASSIGN(d.room, make_room(q));
  return d;
}

Result<Bytes> DeviceMemory::price(const Need& need) const {
  const std::lock_guard lock(mutex_);
  SLUICE_ASSIGN(const Decision d, decide(need));
  Bytes bytes = 0;
  for (const std::size_t i : d.room.given_up) bytes += d.leave[i].booked ? 0 : d.leave[i].size;
  std::map<BlockId, Bytes> lost;
  const auto lose = [&](Address from, Address to, std::optional<BlockId> but = std::nullopt) {
    for (const auto& place : places_.overlapping(from, to))
      if (can_leave(place.block) && place.block != but) lost[place.block] = place.size;
  };
  lose(0, need.workspace);
  lose(arena_.kept_by(d.zone), Arena::kShelf);
  for (const Wanted& want : need.wanted)
    if (want.where == Wanted::Where::zone) lose(want.at, want.at + want.size, want.block);
  for (const auto& [block, size] : lost) bytes += size;
  return bytes;
}

void DeviceMemory::leave(BlockId block, Leaving why) {
  const auto place = places_.find(block);
  const auto booking = booked_.find(block);
  const auto tell = [&](Move::Kind kind, Bytes size) {
    if (options_.on_move) options_.on_move({kind, block, size, why});
  };
  if (booking != booked_.end()) {
    tell(Move::Kind::unbooked, booking->second.size());
    booked_.erase(booking);
    if (store_.has(block.component)) store_.drop_mapped(block);
  }
  if (!place) return;
  places_.erase(block);
  arena_.discard(place->at, place->size);
  if (is_cache(block)) {
    ++counters_.caches_dropped;
    tell(Move::Kind::cache_dropped, place->size);
    return;
  }
  if (!place->loaded) return;
  const bool demotion = store_.has(block.component) && !store_.has_host_copy(block);
  ++(demotion ? counters_.demotions : counters_.evictions);
  counters_.given_up += place->size;
  if (store_.has(block.component))
    options_.log(LogLevel::debug, "give up {} of {}: {}", store_.model(block.component).blocks[block.block].name,
                 store_.model(block.component).name, leaving_name(why));
  tell(demotion ? Move::Kind::demoted : Move::Kind::given_up, place->size);
}

void DeviceMemory::leave_zone(Address from, Address to, Leaving why) {
  for (const auto& place : places_.overlapping(from, to)) leave(place.block, why);
}

void DeviceMemory::free_empty_shelves() {
  for (const auto& shelf : arena_.shelves())
    if (places_.overlapping(shelf.base, shelf.base + shelf.size).empty()) arena_.remove_shelf(shelf.base);
}

Status DeviceMemory::resize_zone(Bytes size) {
  if (size == arena_.zone()) return {};
  leave_zone(arena_.kept_by(size), Arena::kShelf, Leaving::workspace);
  return allocate([&] { return arena_.set_zone(size); });
}

Status DeviceMemory::allocate(const std::function<Status()>& attempt) {
  return outlast_refusal(device_, attempt, [&] { drop_caches(); });
}

void DeviceMemory::drop_caches() {
  for (const Occupant& o : list()) {
    if (!o.cache) continue;
    leave(o.block, Leaving::room);
    const Address base = o.at / Arena::kShelf * Arena::kShelf;
    // Not all empty shelves: one may just have been made for somebody.
    if (places_.overlapping(base, base + Arena::kShelf).empty()) arena_.remove_shelf(base);
  }
}

/// Bytes on their way from one place of a device to another.
struct DeviceMemory::Luggage {
  struct Piece {
    Occupant from;
    RoomAnswer::Place to;
    std::vector<std::byte> bytes;  // empty where nothing was loaded yet, or the way over the host was refused
  };
  Lease lease;  // of the store's host ledger
  std::vector<Piece> pieces;
};

DeviceMemory::Luggage DeviceMemory::pack(const RoomAnswer& room, const std::vector<Occupant>& leaving,
                                         const std::vector<Occupant>& staying, const std::vector<Occupant>& carried) {
  Luggage luggage;
  Bytes total = 0;
  for (std::size_t i = 0; i < carried.size(); ++i) {
    luggage.pieces.push_back({carried[i], room.places[room.places.size() - carried.size() + i], {}});
    total += carried[i].size;
  }
  for (const auto& moved : room.moved) {
    luggage.pieces.push_back({(moved.of_leave ? leaving : staying)[moved.index], moved.place, {}});
    total += luggage.pieces.back().from.size;
  }
  auto lease = store_.host_ledger().reserve(Use::staging, total);
  const bool way = lease.has_value();
  if (way) luggage.lease = *std::move(lease);
  for (auto& piece : luggage.pieces) {
    if (way && piece.from.loaded) {
      piece.bytes.resize(piece.from.size);
      if (!copy(piece.from.at, piece.bytes, false)) piece.bytes.clear();
    }
    // What cannot be carried is given up, and has a place all the same.
    if (piece.bytes.empty())
      leave(piece.from.block, Leaving::lost);
    else
      places_.erase(piece.from.block);
  }
  return luggage;
}

bool DeviceMemory::copy(Address at, std::span<std::byte> bytes, bool to_device) {
  const ggml_context_ptr context{ggml_init({2 * ggml_tensor_overhead(), nullptr, true})};
  if (!context) return false;
  ggml_tensor* tensor = ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, static_cast<std::int64_t>(bytes.size()));
  if (!arena_.bind(tensor, at)) return false;
  if (to_device) return device_.set(tensor, 0, bytes, 0, CancelToken{}).has_value();
  return device_.get(tensor, 0, bytes, 0).has_value();
}

void DeviceMemory::unpack(Luggage& luggage, const std::vector<Arena::Shelf>& fresh) {
  for (auto& piece : luggage.pieces) {
    const bool arrives = !piece.to.fresh || piece.to.shelf < fresh.size();
    const bool carried = !piece.bytes.empty();
    const Address at = arrives ? (piece.to.fresh ? fresh[piece.to.shelf].base : 0) + piece.to.at : piece.from.at;
    places_.put(piece.from.block, at, piece.from.size, carried);
    if (!arrives || (carried && !copy(at, piece.bytes, true))) {
      leave(piece.from.block, Leaving::lost);
      if (arrives) places_.put(piece.from.block, at, piece.from.size, false);
    } else if (carried && options_.on_move) {
      options_.on_move({Move::Kind::moved, piece.from.block, piece.from.size, Leaving::room});
    }
  }
}

bool DeviceMemory::fits_chunks(const Need& need) const { return need.chunk == 0 || arena_.chunk_size() % need.chunk == 0; }

Status DeviceMemory::carry_out(const Need& need, const Decision& d) {
  for (const std::size_t i : d.room.given_up) leave(d.leave[i].block, Leaving::room);
  Luggage luggage = pack(d.room, d.leave, d.stay, d.carried);
  free_empty_shelves();
  const Bytes zone_before = arena_.zone(), backend_before = share_.backend();
  std::vector<Arena::Shelf> fresh;
  std::vector<BlockId> newly_booked;
  const auto take = [&]() -> Status {
    if (!fits_chunks(need)) {
      SLUICE_TRY(resize_zone(0));
      arena_.set_chunk_size(need.chunk);
    }
    if (d.zone < zone_before) SLUICE_TRY(resize_zone(d.zone));
    SLUICE_TRY(share_.set_backend(std::max({backend_before, found_backend_, need.backend})));
    SLUICE_TRY(resize_zone(d.zone));
    for (const Bytes size : d.room.new_shelves) {
      SLUICE_TRY(allocate([&]() -> Status {
        SLUICE_ASSIGN(const auto shelf, arena_.add_shelf(size));
        fresh.push_back(shelf);
        return {};
      }));
    }
    for (const Wanted& want : need.wanted) {
      if (want.where != Wanted::Where::booked || booked_.contains(want.block)) continue;
      SLUICE_ASSIGN(auto lease, device_.ledger().reserve(Use::mapped, want.size));
      booked_.emplace(want.block, std::move(lease));
      newly_booked.push_back(want.block);
      if (options_.on_move) options_.on_move({Move::Kind::booked, want.block, want.size, Leaving::room});
    }
    return {};
  };
  if (auto done = take(); !done) {
    for (const BlockId block : newly_booked) leave(block, Leaving::room);
    for (const auto& shelf : fresh) arena_.remove_shelf(shelf.base);
    unpack(luggage, {});
    drop_unfilled();
    if (arena_.zone() > zone_before) (void)resize_zone(zone_before);  // a smaller zone, or a short one: see set_zone
    (void)share_.set_backend(backend_before);                         // was booked before, in no more than is free now
    return done;
  }
  for (std::size_t i = 0; i < d.to_shelve.size(); ++i) {
    const Wanted& want = need.wanted[d.to_shelve[i]];
    const auto& place = d.room.places[i];
    places_.put(want.block, place.fresh ? fresh[place.shelf].base + place.at : place.at, want.size, false);
  }
  unpack(luggage, fresh);
  return {};
}

Status DeviceMemory::admit(const Need& need) {
  const std::lock_guard lock(mutex_);
  SLUICE_ASSIGN(const Decision decision, decide(need));
  return carry_out(need, decision);
}

std::optional<Address> DeviceMemory::place(BlockId block) const {
  const std::lock_guard lock(mutex_);
  const auto place = places_.find(block);
  if (!place) return std::nullopt;
  return place->at;
}

std::optional<Address> DeviceMemory::resident(BlockId block) const {
  const std::lock_guard lock(mutex_);
  const auto place = places_.find(block);
  if (!place || !place->loaded) return std::nullopt;
  return place->at;
}

void DeviceMemory::set_resident(BlockId block, Address address) {
  const Bytes size = align_up(store_.layout(block).size, device_.info().alignment);
  const std::lock_guard lock(mutex_);
  places_.put(block, address, size, true);
  if (options_.on_move) options_.on_move({Move::Kind::loaded, block, size, Leaving::room});
}

void DeviceMemory::clear_zone(Address from, Address to, Leaving why) {
  const std::lock_guard lock(mutex_);
  leave_zone(from, to, why);
}

void DeviceMemory::give_up(BlockId block, Leaving why) {
  const std::lock_guard lock(mutex_);
  leave(block, why);
}

Status DeviceMemory::reserve_staging(Bytes size) {
  const std::lock_guard lock(mutex_);
  if (size == 0 || staging().size() >= size) return {};
  drop_staging();
  SLUICE_ASSIGN(staging_lease_, store_.host_ledger().reserve(Use::staging, size));
  auto piece = store_.allocate_host(options_.index, Use::staging, size);
  if (!piece) {
    staging_lease_ = {};
    return fail(std::move(piece).error());
  }
  staging_ = *std::move(piece);
  return {};
}

void DeviceMemory::drop_staging() {
  staging_.buffer.reset();
  staging_ = {};
  staging_lease_ = {};
}

void DeviceMemory::touch(ComponentId component) {
  const std::lock_guard lock(mutex_);
  used_[component] = ++now_;
}

void DeviceMemory::drop_unfilled() {
  for (const auto& place : places_.all())
    if (!place.loaded) places_.erase(place.block);
  free_empty_shelves();
}

void DeviceMemory::trim() {
  const std::lock_guard lock(mutex_);
  drop_unfilled();
}

void DeviceMemory::restore_zone(Bytes size) {
  const std::lock_guard lock(mutex_);
  if (arena_.zone() <= size) return;
  for (const auto& place : places_.overlapping(arena_.kept_by(size), Arena::kShelf))
    if (!can_leave(place.block)) return;
  (void)resize_zone(size);  // where the driver refuses even less than it had given, the zone stays short
}

void DeviceMemory::use(ComponentId component, const void* user) {
  const std::lock_guard lock(mutex_);
  to_forget_.erase(component);
  users_[component].insert(user);
}

void DeviceMemory::unuse(const void* user) {
  {
    const std::lock_guard lock(mutex_);
    for (auto it = users_.begin(); it != users_.end();) {
      if (it->second.erase(user) > 0 && it->second.empty()) {
        to_forget_.insert(it->first);
        it = users_.erase(it);
      } else {
        ++it;
      }
    }
  }
  settle_if_free();
}

void DeviceMemory::relieve() {
  const std::lock_guard lock(mutex_);
  relieve_to(capacity_beside(backend_account()));
}

Status DeviceMemory::make_way(Bytes size, Bytes backend) {
  const std::lock_guard lock(mutex_);
  const Bytes account = std::max(backend, backend_account()), capacity = capacity_beside(account);
  relieve_to(capacity - std::min(capacity, size));
  if (const Bytes taken = taken_beside_backend(); budget_ && taken + size > capacity)
    return fail(Code::over_budget,
                fmt::format("{} of weights whose rows are spread do not fit {}", format_bytes(size), device_.info().name),
                *budget_ - capacity + taken + size, *budget_);
  return share_.set_backend(std::max(share_.backend(), backend));
}

void DeviceMemory::relieve_to(Bytes capacity) {
  const Bytes taken = taken_beside_backend();
  if (taken <= capacity) return;
  std::vector<RoomOccupant> stay;
  std::vector<Occupant> staying;
  const auto order = in_order({}, {}, stay, staying);
  // The zone first: nobody works in it. Only whole chunks, so nothing has to be allocated for it.
  const Bytes excess = taken - capacity, zone_before = arena_.zone();
  const Bytes zone = arena_.kept_by(zone_before > excess ? zone_before - excess : 0);
  RoomQuestion q = question(capacity, zone);
  q.stay = std::move(stay);
  for (const Occupant& o : order) q.leave.push_back({o.at, o.size, o.booked, !o.booked});
  std::vector<Occupant> carried;
  for (const auto& place : places_.overlapping(zone, Arena::kShelf)) {
    if (can_leave(place.block)) continue;
    carried.push_back({place.block, place.at, place.size, place.loaded, false, false});
    q.wanted.push_back(place.size);
  }
  auto room = make_room(q);
  if (!room) {
    room = RoomAnswer{};
    for (std::size_t i = 0; i < order.size(); ++i) room->given_up.push_back(i);
    carried.clear();
  }
  for (const std::size_t i : room->given_up) leave(order[i].block, Leaving::pressure);
  Luggage luggage = pack(*room, order, staying, carried);
  free_empty_shelves();
  if (zone != zone_before && room) {
    leave_zone(zone, Arena::kShelf, Leaving::pressure);
    (void)arena_.set_zone(zone);  // whole chunks go: nothing is allocated
  }
  std::vector<Arena::Shelf> fresh;
  for (const Bytes size : room->new_shelves) {
    auto shelf = arena_.add_shelf(size);
    if (!shelf) break;  // what was to stand on it is given up
    fresh.push_back(*shelf);
  }
  unpack(luggage, fresh);
  free_empty_shelves();
}

void DeviceMemory::unload(Leaving why) {
  const std::lock_guard lock(mutex_);
  bool held_in_zone = false;
  for (const Occupant& o : list()) {
    if (can_leave(o.block))
      leave(o.block, why);
    else
      held_in_zone = held_in_zone || (!o.booked && !Arena::on_shelf(o.at));
  }
  free_empty_shelves();
  drop_staging();
  if (!held_in_zone) (void)arena_.set_zone(0);  // shrinking to nothing allocates nothing
}

void DeviceMemory::forget_component(ComponentId component) {
  for (const Occupant& o : list())
    if (o.block.component == component && !(store_.has(component) && store_.held(o.block))) leave(o.block, Leaving::closed);
  used_.erase(component);
  free_empty_shelves();
}

void DeviceMemory::forget(ComponentId component) {
  {
    const std::lock_guard lock(mutex_);
    to_forget_.insert(component);
  }
  settle_if_free();
}

void DeviceMemory::claim_zone(const void* owner, Bytes size) {
  {
    const std::lock_guard lock(mutex_);
    if (size > 0) {
      claims_[owner] = size;
    } else {
      claims_.erase(owner);
      shrink_ = true;
    }
  }
  settle_if_free();
}

Result<BlockId> DeviceMemory::add_cache(Bytes size) {
  const std::lock_guard lock(mutex_);
  size = align_up(size, device_.info().alignment);
  const Bytes capacity = capacity_beside(backend_account());
  RoomQuestion q = question(capacity, arena_.zone());
  q.wanted = {size};
  std::vector<Occupant> staying, order = in_order({}, {}, q.stay, staying);
  std::erase_if(order, [&](const Occupant& o) {
    if (!o.cache) q.stay.push_back({o.at, o.size, o.booked});
    return !o.cache;
  });
  for (const Occupant& o : order) q.leave.push_back({o.at, o.size, false, false});
  SLUICE_ASSIGN(const auto room, make_room(q));
  for (const std::size_t i : room.given_up) leave(order[i].block, Leaving::room);
  free_empty_shelves();
  Address at = room.places[0].at;
  if (room.places[0].fresh) {
    SLUICE_ASSIGN(const auto shelf, arena_.add_shelf(size));
    at = shelf.base;
  }
  const BlockId key{kCaches + caches_made_++, 0};
  places_.put(key, at, size, true);
  used_[key.component] = ++now_;
  return key;
}

std::optional<Address> DeviceMemory::find_cache(BlockId key) {
  const std::lock_guard lock(mutex_);
  const auto place = places_.find(key);
  if (!place) return std::nullopt;
  used_[key.component] = ++now_;
  return place->at;
}

void DeviceMemory::drop_cache(BlockId key) {
  const std::lock_guard lock(mutex_);
  leave(key, Leaving::closed);
  used_.erase(key.component);
  free_empty_shelves();
}

void DeviceMemory::lend(Use use, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  const Bytes n = std::min(bytes, arena_.lease().size());
  if (n > 0) lent_.push_back(arena_.lease().lend(use, n));
}

void DeviceMemory::take_back_lent() {
  const std::lock_guard lock(mutex_);
  for (auto& lease : lent_) arena_.lease().take_back(std::move(lease));
  lent_.clear();
}

DeviceMemory::Counters DeviceMemory::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace sluice
