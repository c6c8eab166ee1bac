#include "device/memory_report.h"

#include <doctest/doctest.h>

using namespace sluice;

TEST_CASE("believe_memory: hostile reports") {
  constexpr Bytes most = ~Bytes{0};
  struct Row {
    Bytes free, total, booked;
    MemoryView view;
  };
  const Row rows[] = {
      {6 * GiB, 8 * GiB, GiB, {6 * GiB, 8 * GiB, true}},
      {0, 8 * GiB, 0, {0, 8 * GiB, true}},
      {8 * GiB, 8 * GiB, 0, {8 * GiB, 8 * GiB, true}},
      {0, 0, 0, {0, 0, false}},
      {4 * GiB, 0, 0, {0, 0, false}},
      {most, most, 0, {0, 0, false}},
      {4 * GiB, most, 0, {0, 0, false}},
      {4 * GiB, Bytes{1} << 63, 0, {0, 0, false}},
      // more free than there is: only our own books are left to go by
      {9 * GiB, 8 * GiB, 3 * GiB, {5 * GiB, 8 * GiB, false}},
      // −1 GiB free, wrapped
      {most - GiB + 1, 8 * GiB, 3 * GiB, {5 * GiB, 8 * GiB, false}},
      {most, 8 * GiB, 9 * GiB, {0, 8 * GiB, false}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.free);
    CAPTURE(row.total);
    const MemoryView view = believe_memory(row.free, row.total, row.booked);
    CHECK(view.free == row.view.free);
    CHECK(view.total == row.view.total);
    CHECK(view.known == row.view.known);
    CHECK(view.doubt.empty() == view.known);
  }
}

TEST_CASE("usable_memory: reserve, limit and what is held already") {
  const MemoryView known{.free = 6 * GiB, .total = 8 * GiB, .known = true};
  CHECK(usable_memory(known, 0, GiB, std::nullopt) == 5 * GiB);
  CHECK(usable_memory(known, GiB, GiB, std::nullopt) == 6 * GiB);
  CHECK(usable_memory(known, 99 * GiB, 0, std::nullopt) == 8 * GiB);
  CHECK(usable_memory(known, 0, 7 * GiB, std::nullopt) == Bytes{0});
  CHECK(usable_memory(known, 0, ~Bytes{0}, std::nullopt) == Bytes{0});
  CHECK(usable_memory(known, 0, GiB, 2 * GiB) == 2 * GiB);
  CHECK(usable_memory(known, 0, GiB, 20 * GiB) == 5 * GiB);
  const MemoryView unknown{.free = 6 * GiB, .total = 8 * GiB, .known = false};
  CHECK(usable_memory(unknown, 0, GiB, 2 * GiB) == 2 * GiB);
  CHECK(usable_memory(unknown, 0, GiB, std::nullopt) == std::nullopt);
}

TEST_CASE("believe_memory: what is wrong is told apart") {
  const auto doubt = [](Bytes free, Bytes total) { return std::string(believe_memory(free, total, 0).doubt); };
  CHECK(doubt(1, 0).find("no memory at all") != std::string::npos);
  CHECK(doubt(0, ~Bytes{0}).find("than an address reaches") != std::string::npos);
  CHECK(doubt(9, 8).find("more is free than there is") != std::string::npos);
  CHECK(doubt(~Bytes{0} - 5, 8).find("below zero") != std::string::npos);
}
