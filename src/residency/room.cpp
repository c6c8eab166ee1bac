#include "residency/room.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace sluice {
namespace {

struct Hole {
  Address at = 0;
  Bytes size = 0;
};

/// What a set of marks leaves: the bytes that are taken whatever is placed, and the holes of shelves that stay.
struct Rest {
  Bytes taken = 0;
  std::size_t shelves = 0;
  std::vector<Hole> holes;
};

Rest rest_of(const RoomQuestion& q, const std::vector<bool>& marked) {
  Rest rest;
  rest.taken = q.zone + q.booked;
  std::vector<Hole> kept;  // occupants by address
  const auto keep = [&](const RoomOccupant& o) {
    if (o.booked)
      rest.taken += o.size;
    else
      kept.push_back({o.at, o.size});
  };
  for (const auto& o : q.stay) keep(o);
  for (std::size_t i = 0; i < q.leave.size(); ++i)
    if (!marked[i]) keep(q.leave[i]);
  std::sort(kept.begin(), kept.end(), [](const Hole& a, const Hole& b) { return a.at < b.at; });
  auto next = kept.begin();
  for (const auto& shelf : q.shelves) {
    const Address end = shelf.base + shelf.size;
    while (next != kept.end() && next->at < shelf.base) ++next;
    if (next == kept.end() || next->at >= end) continue;  // empty: it makes way
    rest.taken += shelf.size;
    ++rest.shelves;
    Address at = shelf.base;
    for (; next != kept.end() && next->at < end; ++next) {
      if (next->at > at) rest.holes.push_back({at, next->at - at});
      at = std::max(at, next->at + next->size);
    }
    if (at < end) rest.holes.push_back({at, end - at});
  }
  return rest;
}

/// Puts what found no hole on at most `count` new shelves of at most `most` bytes each: about half of what is left on each, or
/// as much as goes there.
bool shelve(const std::vector<Bytes>& wanted, const std::vector<std::size_t>& left, std::size_t count, Bytes most, bool halves,
            RoomAnswer& answer) {
  answer.new_shelves.clear();
  Bytes rest = 0, goal = 0;
  for (const std::size_t w : left) rest += wanted[w];
  for (const std::size_t w : left) {
    const Bytes size = wanted[w];
    if (answer.new_shelves.empty() || answer.new_shelves.back() + size > goal) {
      if (answer.new_shelves.size() == count) return false;
      const bool last = answer.new_shelves.size() + 1 == count;
      goal = std::max(std::min(halves && !last ? rest / 2 : rest, most), size);
      answer.new_shelves.push_back(0);
    }
    answer.places[w] = {true, answer.new_shelves.size() - 1, answer.new_shelves.back()};
    answer.new_shelves.back() += size;
    rest -= size;
  }
  return true;
}

std::optional<RoomAnswer> fit(const RoomQuestion& q, const std::vector<bool>& marked) {
  Rest rest = rest_of(q, marked);
  if (rest.taken > q.capacity) return std::nullopt;
  std::vector<Bytes> wanted = q.wanted;
  for (std::size_t i = 0; i < marked.size(); ++i)
    if (marked[i] && q.leave[i].again) wanted.push_back(q.leave[i].size);
  RoomAnswer answer;
  answer.places.resize(wanted.size());
  std::vector<std::size_t> left;
  Bytes total = 0;
  std::vector<std::size_t> by_size(wanted.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(), [&](std::size_t a, std::size_t b) { return wanted[a] > wanted[b]; });
  for (const std::size_t w : by_size) {
    Hole* best = nullptr;
    for (Hole& hole : rest.holes)
      if (hole.size >= wanted[w] && (!best || hole.size < best->size)) best = &hole;
    if (!best) {
      left.push_back(w);
      total += wanted[w];
      continue;
    }
    // From the hole's far end, so that what stays free is next to what is free already.
    best->size -= wanted[w];
    answer.places[w] = {false, 0, best->at + best->size};
  }
  std::sort(left.begin(), left.end());
  if (total > q.capacity - rest.taken) return std::nullopt;
  const std::size_t count = q.shelves_at_most - std::min(q.shelves_at_most, rest.shelves);
  if (!shelve(wanted, left, count, q.largest, false, answer)) return std::nullopt;
  // Halves can be given back one by one, but no shelf is spent on them that somebody else may need for what is free still.
  const std::size_t used = answer.new_shelves.size();
  const Bytes others = (q.capacity - rest.taken - total + q.largest - 1) / q.largest + rest.shelves + used;
  const std::size_t spare = q.shelves_usual - static_cast<std::size_t>(std::min<Bytes>(q.shelves_usual, others));
  RoomAnswer in_halves = answer;
  if (spare > 1 && shelve(wanted, left, used + spare / 2, q.largest, true, in_halves)) return in_halves;
  return answer;
}

}  // namespace

Result<RoomAnswer> make_room(const RoomQuestion& q) {
  Bytes least = q.zone + q.booked;
  for (const Bytes size : q.wanted) least += size;
  for (const auto& o : q.stay) least += o.size;
  std::vector<bool> marked(q.leave.size(), false);
  auto answer = fit(q, marked);
  for (std::size_t i = 0; !answer && i < q.leave.size(); ++i) {
    marked[i] = true;
    answer = fit(q, marked);
  }
  if (!answer) return fail(Code::over_budget, "no room can be made", std::max(least, q.capacity + 1), q.capacity);
  // One that is taken back may open a hole for another, so until none can be.
  for (bool again = true; again;) {
    again = false;
    for (std::size_t i = q.leave.size(); i-- > 0;) {
      if (!marked[i]) continue;
      marked[i] = false;
      if (auto without = fit(q, marked)) {
        answer = std::move(without);
        again = true;
      } else {
        marked[i] = true;
      }
    }
  }
  for (std::size_t i = 0; i < marked.size(); ++i)
    if (marked[i]) answer->given_up.push_back(i);
  return *std::move(answer);
}

}  // namespace sluice
