#include "base/pages.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace sluice;

TEST_CASE("pages: aligned, zero, as large as asked, movable") {
  auto pages = Pages::map(10'000);
  REQUIRE(pages);
  CHECK(pages->size() == 10'000);
  CHECK(reinterpret_cast<std::uintptr_t>(pages->data()) % page_size() == 0);
  CHECK(std::ranges::all_of(pages->bytes(), [](std::byte b) { return b == std::byte{0}; }));
  pages->data()[9'999] = std::byte{5};
  const Pages moved = std::move(*pages);
  CHECK(pages->data() == nullptr);
  REQUIRE(moved.forbid());
  REQUIRE(moved.allow());
  CHECK(moved.data()[9'999] == std::byte{5});
}

TEST_CASE("pages: what cannot be had is an error") {
  CHECK_FALSE(Pages::map(0));
  CHECK_FALSE(Pages::map(~Bytes{0}));
  CHECK(Pages::map(Bytes{1} << 62).error().needed == Bytes{1} << 62);
}
