#include "exec/free_ranges.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

using namespace sluice;

TEST_CASE("free_ranges: the far end first, never across a chunk's end, never below the floor") {
  FreeRanges free(10, 250, 100);
  CHECK(free.take_highest(60) == 140);  // 200..250 is too short
  CHECK(free.take_highest(50) == 200);
  CHECK(free.take_highest(40, 101) == std::nullopt);  // 100..140 is free, but not above the floor
  CHECK(free.take_highest(39, 101) == 101);
  CHECK(free.take_highest(90) == 10);
  CHECK(free.take_highest(2) == std::nullopt);
  CHECK(free.take_highest(1) == 100);
  CHECK(free.take_highest(1) == std::nullopt);
}

TEST_CASE("free_ranges: without chunks one range; an empty one holds nothing") {
  FreeRanges whole(0, 1000, 0);
  CHECK(whole.take_highest(1000) == 0);
  CHECK(FreeRanges(50, 50, 100).take_highest(1) == std::nullopt);
  CHECK(FreeRanges(60, 50, 100).take_highest(1) == std::nullopt);
}

TEST_CASE("free_ranges: random takings are disjoint, inside, whole, and only refused when no gap is left") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    const Bytes chunk = rng() % 4 ? 50 + rng() % 100 : 0;
    const Address from = rng() % 300, to = from + rng() % 700;
    FreeRanges free(from, to, chunk);
    std::vector<bool> used(to, false);
    const auto fits = [&](Address at, Bytes size) {
      if (chunk && at / chunk != (at + size - 1) / chunk) return false;
      return std::none_of(used.begin() + at, used.begin() + at + size, [](bool u) { return u; });
    };
    for (int i = 0; i < 30; ++i) {
      const Bytes size = 1 + rng() % 40;
      const Address floor = rng() % 2 ? 0 : rng() % 1000;
      const auto at = free.take_highest(size, floor);
      std::optional<Address> expected;
      for (Address a = std::max(from, floor); a + size <= to; ++a)
        if (fits(a, size)) expected = a;
      REQUIRE(at == expected);
      if (at) std::fill(used.begin() + *at, used.begin() + *at + size, true);
    }
  }
}
