#include "residency/room.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

using namespace sluice;

namespace {

Bytes sum(const std::vector<Bytes>& sizes) {
  Bytes total = 0;
  for (const Bytes s : sizes) total += s;
  return total;
}

/// Everything the header promises of an answer, from the question alone.
void check(const RoomQuestion& q, const RoomAnswer& a) {
  struct Range {
    Address from, to;
  };
  std::vector<Range> kept;
  Bytes taken = q.zone + q.booked;
  const auto moved = [&](bool of_leave, std::size_t index) {
    return std::any_of(a.moved.begin(), a.moved.end(), [&](auto& m) { return m.of_leave == of_leave && m.index == index; });
  };
  const auto keep = [&](const RoomOccupant& o) {
    if (o.booked)
      taken += o.size;
    else
      kept.push_back({o.at, o.at + o.size});
  };
  for (std::size_t i = 0; i < q.stay.size(); ++i)
    if (!moved(false, i)) keep(q.stay[i]);
  REQUIRE(std::is_sorted(a.given_up.begin(), a.given_up.end()));
  for (std::size_t i = 0; i < q.leave.size(); ++i)
    if (!std::binary_search(a.given_up.begin(), a.given_up.end(), i) && !moved(true, i)) keep(q.leave[i]);
  REQUIRE(a.places.size() == q.wanted.size());
  std::vector<Bytes> filled(a.new_shelves.size(), 0);
  const auto put = [&](const RoomAnswer::Place& place, Bytes size) {
    if (place.fresh) {
      REQUIRE(place.shelf < filled.size());
      CHECK(place.at == filled[place.shelf]);
      filled[place.shelf] += size;
    } else {
      kept.push_back({place.at, place.at + size});
    }
  };
  for (std::size_t w = 0; w < q.wanted.size(); ++w) put(a.places[w], q.wanted[w]);
  for (const auto& m : a.moved) {
    const auto& o = (m.of_leave ? q.leave : q.stay)[m.index];
    CHECK(o.movable);
    if (m.of_leave) CHECK_FALSE(std::binary_search(a.given_up.begin(), a.given_up.end(), m.index));
    put(m.place, o.size);
  }
  CHECK(filled == a.new_shelves);
  for (const Bytes size : a.new_shelves) CHECK(size <= q.largest);
  std::sort(kept.begin(), kept.end(), [](auto& x, auto& y) { return x.from < y.from; });
  for (std::size_t i = 1; i < kept.size(); ++i) CHECK(kept[i - 1].to <= kept[i].from);
  std::size_t shelves = a.new_shelves.size();
  for (const auto& shelf : q.shelves) {
    const bool used = std::any_of(kept.begin(), kept.end(),
                                  [&](auto& r) { return r.from >= shelf.base && r.from < shelf.base + shelf.size; });
    taken += used ? shelf.size : 0;
    shelves += used;
  }
  for (const auto& r : kept) {
    const bool inside = std::any_of(q.shelves.begin(), q.shelves.end(),
                                    [&](const auto& shelf) { return r.from >= shelf.base && r.to <= shelf.base + shelf.size; });
    CHECK(inside);
  }
  CHECK((shelves <= q.shelves_at_most || a.new_shelves.empty()));
  CHECK(taken + sum(a.new_shelves) <= q.capacity);
}

/// Shelves filled with blocks, some of them given a hole.
RoomQuestion random_question(unsigned seed, bool equal) {
  std::mt19937 rng(seed);
  RoomQuestion q;
  q.largest = 64 * 20;
  q.shelves_at_most = 40;
  q.shelves_usual = rng() % 20;
  q.zone = 64 * (rng() % 30);
  q.booked = rng() % 4 ? 0 : 64 * (rng() % 5);
  Bytes taken = q.zone + q.booked;
  const auto size = [&] { return equal ? Bytes{64 * 4} : Bytes{64 * (1 + rng() % 8)}; };
  const auto shelves = rng() % 6;
  for (Bytes s = 0; s < shelves; ++s) {
    Arena::Shelf shelf{(s + 1) * Arena::kShelf, 0};
    const auto blocks = 1 + rng() % 4;
    for (Bytes b = 0; b < blocks; ++b) {
      const Bytes bytes = size();
      const bool movable = rng() % 8 > 0;
      if (rng() % 5 != 0) {
        if (rng() % 6)
          q.leave.push_back({shelf.base + shelf.size, bytes, false, true});
        else
          q.stay.push_back({shelf.base + shelf.size, bytes, false, movable});
      }
      shelf.size += bytes;
    }
    q.shelves.push_back(shelf);
    taken += shelf.size;
  }
  if (rng() % 3 == 0) {
    q.leave.push_back({0, size(), true});
    taken += q.leave.back().size;
  }
  std::shuffle(q.leave.begin(), q.leave.end(), rng);
  const auto wanted = rng() % 6;
  for (Bytes w = 0; w < wanted; ++w) q.wanted.push_back(size());
  q.capacity = taken + (equal ? 64 * 4 : 64) * (rng() % 8);
  return q;
}

}  // namespace

TEST_CASE("room: what fits is placed, no mark is in vain, the order is kept") {
  int refused = 0, without = 0, gave = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    CAPTURE(seed);
    const auto q = random_question(seed, seed % 2);
    const auto answer = make_room(q);
    if (!answer) {
      CHECK(answer.error().code == Code::over_budget);
      // Not even an empty device would do, as long as nothing stays.
      if (q.stay.empty()) CHECK(q.zone + q.booked + sum(q.wanted) > q.capacity);
      ++refused;
      continue;
    }
    check(q, *answer);
    (answer->given_up.empty() ? without : gave) += 1;
    // No more than is missing and one block; any one of them would be missed; nobody leaves for whom those before would have
    // done. Where something cannot be moved, places may need more than bytes do.
    const bool all_movable = std::all_of(q.stay.begin(), q.stay.end(), [](auto& o) { return o.movable || o.booked; });
    if (!all_movable) continue;
    Bytes needed = q.zone + q.booked + sum(q.wanted);
    for (const auto& o : q.stay) needed += o.size;
    for (const auto& o : q.leave) needed += o.size;
    const Bytes missing = needed - std::min(needed, q.capacity);
    Bytes given = 0;
    for (const std::size_t i : answer->given_up) given += q.leave[i].size;
    CHECK(given >= missing);
    for (const std::size_t i : answer->given_up) CHECK(given - q.leave[i].size < missing);
    if (answer->given_up.empty()) continue;
    Bytes before = 0;
    for (std::size_t i = 0; i < answer->given_up.back(); ++i) before += q.leave[i].size;
    CHECK(before < missing);
  }
  CHECK(refused > 50);
  CHECK(without > 200);
  CHECK(gave > 200);
}

TEST_CASE("room: with blocks of one size no more than a block above what is missing is given up") {
  int tried = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    constexpr Bytes kBlock = 256;
    RoomQuestion q;
    q.largest = kBlock;  // a block a shelf: everything that is given up can be used
    q.shelves_at_most = 100;
    const std::size_t blocks = 1 + rng() % 20;
    for (std::size_t b = 0; b < blocks; ++b) {
      q.shelves.push_back({(b + 1) * Arena::kShelf, kBlock});
      q.leave.push_back({(b + 1) * Arena::kShelf, kBlock, false});
    }
    q.capacity = blocks * kBlock + rng() % 1000;
    q.zone = rng() % 2000;
    q.wanted.assign(rng() % 5, kBlock);
    const Bytes needed = q.zone + sum(q.wanted) + blocks * kBlock;
    const Bytes missing = needed - std::min(needed, q.capacity);
    const auto answer = make_room(q);
    if (!answer) continue;
    CHECK(answer->given_up.size() * kBlock < missing + kBlock);
    tried += missing > 0;
    // In order, from the first.
    for (std::size_t i = 0; i < answer->given_up.size(); ++i) CHECK(answer->given_up[i] == i);
  }
  CHECK(tried > 500);
}

TEST_CASE("room: an object above the largest buffer gets a shelf of its own") {
  RoomQuestion q;
  q.capacity = 1000;
  q.largest = 100;
  q.shelves_at_most = 10;
  q.wanted = {64, 132, 32};
  const auto answer = make_room(q);
  REQUIRE(answer);
  REQUIRE(answer->new_shelves.size() == 3);
  CHECK(answer->new_shelves[answer->places[1].shelf] == 132);
  q.wanted[1] = 1000;
  CHECK(make_room(q).error().code == Code::over_budget);
}
