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

bool on(const Arena::Shelf& shelf, const RoomOccupant& o) {
  return !o.booked && o.at >= shelf.base && o.at < shelf.base + shelf.size;
}

/// Puts what found no hole on at most `count` new shelves of at most `most` bytes each: a `part`-th of what is left on each, or
/// all of it (1).
bool shelve(const std::vector<Bytes>& wanted, const std::vector<std::size_t>& left, std::size_t count, Bytes most, Bytes part,
            std::vector<RoomAnswer::Place>& places, std::vector<Bytes>& shelves) {
  shelves.clear();
  Bytes rest = 0, goal = 0;
  for (const std::size_t w : left) rest += wanted[w];
  for (const std::size_t w : left) {
    const Bytes size = wanted[w];
    if (shelves.empty() || shelves.back() + size > goal) {
      if (shelves.size() == count) return false;
      goal = std::max(std::min(rest / part, most), size);
      shelves.push_back(0);
    }
    places[w] = {true, shelves.size() - 1, shelves.back()};
    shelves.back() += size;
    rest -= size;
  }
  return true;
}

class Room {
 public:
  explicit Room(const RoomQuestion& q) : q_(q), marked_(q.leave.size(), false), cleared_(q.shelves.size(), false) {}

  Result<RoomAnswer> make() {
    Bytes taken = q_.zone + q_.booked;
    for (const Bytes size : q_.wanted) taken += size;
    for (const auto& o : q_.stay) taken += o.size;
    const Bytes least = taken;
    for (const auto& o : q_.leave) taken += o.size;
    std::size_t next = 0;
    for (; taken > q_.capacity && next < q_.leave.size(); ++next) mark(next, taken);
    if (taken > q_.capacity) return fail(Code::over_budget, "no room can be made", least, q_.capacity);
    for (std::size_t i = next; i-- > 0;) {
      if (!marked_[i] || taken + q_.leave[i].size > q_.capacity) continue;
      marked_[i] = false;
      taken += q_.leave[i].size;
    }
    auto answer = fit_by_moving();
    // What may not be moved can lie so that bytes suffice and places do not.
    for (; !answer && next < q_.leave.size(); ++next) {
      mark(next, taken);
      answer = fit_by_moving();
    }
    if (!answer)
      return fail(Code::over_budget, "what cannot leave lies in the way", std::max(least, q_.capacity + 1), q_.capacity);
    for (std::size_t i = 0; i < marked_.size(); ++i)
      if (marked_[i]) answer->given_up.push_back(i);
    return *std::move(answer);
  }

 private:
  void mark(std::size_t i, Bytes& taken) {
    if (marked_[i]) return;
    marked_[i] = true;
    taken -= q_.leave[i].size;
  }

  template <typename Do>
  void each_survivor(const Do& act) const {
    for (std::size_t i = 0; i < q_.stay.size(); ++i) act(q_.stay[i], false, i, q_.stay[i].movable);
    for (std::size_t i = 0; i < q_.leave.size(); ++i)
      if (!marked_[i]) act(q_.leave[i], true, i, q_.leave[i].movable);
  }

  std::optional<RoomAnswer> fit_by_moving() {
    cleared_.assign(q_.shelves.size(), false);
    auto answer = fit();
    if (answer) return answer;
    // The shelves with least on them first.
    std::vector<Bytes> load(q_.shelves.size(), 0);
    for (std::size_t s = 0; s < q_.shelves.size(); ++s)
      each_survivor([&](const RoomOccupant& o, bool, std::size_t, bool movable) {
        if (movable && on(q_.shelves[s], o)) load[s] += o.size;
      });
    std::vector<std::size_t> order(q_.shelves.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return load[a] < load[b]; });
    for (const std::size_t s : order) {
      if (answer || load[s] == 0) continue;
      cleared_[s] = true;
      answer = fit();
    }
    for (const std::size_t s : order) {
      if (!answer || !cleared_[s]) continue;
      cleared_[s] = false;
      if (auto without = fit())
        answer = std::move(without);
      else
        cleared_[s] = true;
    }
    return answer;
  }

  /// Places everything with the present marks and cleared shelves, if it can be done.
  std::optional<RoomAnswer> fit() const {
    RoomAnswer answer;
    Bytes taken = q_.zone + q_.booked;
    std::vector<RoomOccupant> kept;
    std::vector<Bytes> wanted = q_.wanted;
    each_survivor([&](const RoomOccupant& o, bool of_leave, std::size_t index, bool movable) {
      if (o.booked) {
        taken += o.size;
        return;
      }
      const auto shelf = std::find_if(q_.shelves.begin(), q_.shelves.end(), [&](const auto& s) { return on(s, o); });
      if (movable && cleared_[static_cast<std::size_t>(shelf - q_.shelves.begin())]) {
        answer.moved.push_back({of_leave, index, {}});
        wanted.push_back(o.size);
      } else {
        kept.push_back(o);
      }
    });
    std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
    std::vector<Hole> holes;
    std::size_t shelves = 0;
    auto next = kept.begin();
    for (const auto& shelf : q_.shelves) {
      const Address end = shelf.base + shelf.size;
      if (next == kept.end() || next->at >= end) continue;  // empty: it makes way
      taken += shelf.size;
      ++shelves;
      Address at = shelf.base;
      for (; next != kept.end() && next->at < end; ++next) {
        if (next->at > at) holes.push_back({at, next->at - at});
        at = std::max(at, next->at + next->size);
      }
      if (at < end) holes.push_back({at, end - at});
    }
    if (taken > q_.capacity) return std::nullopt;

    std::vector<RoomAnswer::Place> places(wanted.size());
    std::vector<std::size_t> by_size(wanted.size()), left, left_moved;
    std::iota(by_size.begin(), by_size.end(), 0);
    std::stable_sort(by_size.begin(), by_size.end(), [&](std::size_t a, std::size_t b) { return wanted[a] > wanted[b]; });
    Bytes total = 0;
    for (const std::size_t w : by_size) {
      Hole* best = nullptr;
      for (Hole& hole : holes)
        if (hole.size >= wanted[w] && (!best || hole.size < best->size)) best = &hole;
      if (!best) {
        (w < q_.wanted.size() ? left : left_moved).push_back(w);
        total += wanted[w];
        continue;
      }
      // From the hole's far end, so that what stays free is next to what is free already.
      best->size -= wanted[w];
      places[w] = {false, 0, best->at + best->size};
    }
    std::sort(left.begin(), left.end());
    std::sort(left_moved.begin(), left_moved.end());
    if (total > q_.capacity - taken) return std::nullopt;
    std::size_t count = q_.shelves_at_most - std::min(q_.shelves_at_most, shelves);
    // What is moved stands apart from what is wanted, which goes again as a whole if its request fails.
    std::vector<Bytes> for_moved;
    if (!shelve(wanted, left_moved, count, q_.largest, 1, places, for_moved)) return std::nullopt;
    count -= for_moved.size();
    shelves += for_moved.size();
    if (!shelve(wanted, left, count, q_.largest, 1, places, answer.new_shelves)) return std::nullopt;
    // Small shelves can be given back one by one, but none is spent on that which somebody else may need for what is free
    // still.
    const Bytes others = (q_.capacity - taken - total + q_.largest - 1) / q_.largest + shelves + answer.new_shelves.size();
    const std::size_t spare = q_.shelves_usual - static_cast<std::size_t>(std::min<Bytes>(q_.shelves_usual, others));
    const std::size_t usual = answer.new_shelves.size() + spare / 2;
    for (const Bytes part : {Bytes{1} << 60, Bytes{16}, Bytes{8}, Bytes{4}, Bytes{2}}) {
      auto finer = places;
      std::vector<Bytes> sizes;
      if (!shelve(wanted, left, usual, q_.largest, part, finer, sizes)) continue;
      places = std::move(finer);
      answer.new_shelves = std::move(sizes);
      break;
    }
    for (const std::size_t w : left_moved) places[w].shelf += answer.new_shelves.size();
    answer.new_shelves.insert(answer.new_shelves.end(), for_moved.begin(), for_moved.end());
    answer.places.assign(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(q_.wanted.size()));
    for (std::size_t m = 0; m < answer.moved.size(); ++m) answer.moved[m].place = places[q_.wanted.size() + m];
    return answer;
  }

  const RoomQuestion& q_;
  std::vector<bool> marked_;   // of q_.leave
  std::vector<bool> cleared_;  // shelves from which what can be moved is moved
};

}  // namespace

Result<RoomAnswer> make_room(const RoomQuestion& question) { return Room(question).make(); }

}  // namespace sluice
