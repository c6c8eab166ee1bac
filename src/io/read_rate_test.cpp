#include "io/read_rate.h"

#include <doctest/doctest.h>

#include "io/test_folder.h"

using namespace sluice;

TEST_CASE("reading is timed over what was asked for: the file, so many bytes, or so long, but at least a piece") {
  const test::Folder folder;
  const std::string path = folder / "file";
  test::spill(path, std::vector<std::byte>(9 * MiB, std::byte{1}));
  const auto whole = time_reading(path, GiB, 100);
  REQUIRE(whole);
  CHECK(whole->bytes == 9 * MiB);
  CHECK(whole->seconds > 0);
  CHECK(time_reading(path, 5 * MiB, 100)->bytes == 5 * MiB);
  CHECK(time_reading(path, GiB, 0)->bytes == 4 * MiB);
  CHECK(time_reading(folder / "none", GiB, 1).error().code == Code::not_found);
  test::spill(folder / "empty", {});
  CHECK(time_reading(folder / "empty", GiB, 1).error().code == Code::io);
}
