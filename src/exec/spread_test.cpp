#include "exec/spread.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

using namespace sluice;

namespace {

SpreadDevice device(std::vector<Bytes> weights, std::optional<Bytes> capacity, double second = 1) {
  SpreadDevice d;
  d.capacity = capacity;
  d.link_bytes_per_s = 100;
  d.weights = std::move(weights);
  d.workspace.assign(d.weights.size(), 10);
  d.compute_s.assign(d.weights.size(), second);
  d.unable.assign(d.weights.size(), {});
  return d;
}

/// Each block hands one value to the next; `skip` bytes go from the first to the last.
std::vector<SpreadValue> chain(std::size_t blocks, Bytes size, Bytes skip = 0) {
  std::vector<SpreadValue> values;
  for (int b = 0; b + 1 < static_cast<int>(blocks); ++b) values.push_back({size, b, {b + 1}});
  if (skip > 0) values.push_back({skip, 0, {static_cast<int>(blocks) - 1}});
  return values;
}

std::vector<std::size_t> first(std::initializer_list<SpreadDevice> devices, const std::vector<SpreadValue>& values,
                               std::optional<std::size_t> fallback = std::nullopt) {
  const auto spreads = spread_blocks(devices, values, fallback);
  REQUIRE_FALSE(spreads.empty());
  return spreads[0].device_of;
}

using Blocks = std::vector<std::size_t>;

}  // namespace

TEST_CASE("equal devices get equal shares, in proportion to what they can hold") {
  const std::vector<Bytes> ten(10, 100);
  CHECK(first({device(ten, 2000), device(ten, 2000)}, chain(10, 1)) == Blocks{0, 0, 0, 0, 0, 1, 1, 1, 1, 1});
  CHECK(first({device(ten, std::nullopt), device(ten, std::nullopt)}, chain(10, 1)) == Blocks{0, 0, 0, 0, 0, 1, 1, 1, 1, 1});
  CHECK(first({device(ten, 300), device(ten, 900)}, chain(10, 1)) == Blocks{0, 0, 1, 1, 1, 1, 1, 1, 1, 1});
  CHECK(first({device(ten, 2000)}, chain(10, 1)) == Blocks(10, 0));
  const auto three = first({device(ten, 500), device(ten, 500), device(ten, 500)}, chain(10, 1));
  for (std::size_t d = 0; d < 3; ++d) CHECK(std::count(three.begin(), three.end(), d) >= 3);
}

TEST_CASE("a slow device gets only what would not be faster copied") {
  const std::vector<Bytes> ten(10, 100);
  // Everything fits the fast one.
  CHECK(first({device(ten, 5000), device(ten, 5000, 50)}, chain(10, 1)) == Blocks(10, 0));
  // 600 bytes over at 100 bytes a second are 6 s of copying, hidden behind 10 s of computing; a slow block costs 50 s.
  CHECK(first({device(ten, 420), device(ten, 5000, 50)}, chain(10, 1)) == Blocks(10, 0));
  // With a slow link a little of it pays: nothing is copied then.
  auto slow_link = device(ten, 1015);
  slow_link.link_bytes_per_s = 1;
  slow_link.weights[9] = 200;
  auto other = device(ten, 5000, 20);
  other.weights[9] = 200;
  const auto dealt = first({slow_link, other}, chain(10, 1));
  CHECK(dealt == Blocks{0, 0, 0, 0, 0, 0, 0, 0, 0, 1});
}

TEST_CASE("what a device cannot hold is not dealt to it") {
  std::vector<Bytes> weights(6, 100);
  weights[4] = 900;
  CHECK(first({device(weights, 2000), device(weights, 300)}, chain(6, 1)) == Blocks{0, 0, 0, 0, 0, 1});
  const auto none = spread_blocks({device(weights, 300), device(weights, 300)}, chain(6, 1));
  REQUIRE_FALSE(none.empty());
  CHECK(std::none_of(none.begin(), none.end(), [](const Spread& s) { return s.fits; }));
}

TEST_CASE("among cuts that are as good the one that fewest bytes cross") {
  const std::vector<Bytes> weights(100, 100);
  auto values = chain(100, 50);
  values[50].size = 5;  // written by block 50: a cut behind it is cheap
  const auto dealt = first({device(weights, 20000), device(weights, 20000)}, values);
  CHECK(std::count(dealt.begin(), dealt.end(), 0U) == 51);
}

TEST_CASE("a block that a device cannot run goes to the nearest that can, or to the fallback") {
  const std::vector<Bytes> six(6, 100);
  auto a = device(six, 2000), b = device(six, 2000), spare = device(six, std::nullopt, 100);
  a.unable[1] = "a cannot run X on f32";
  CHECK(first({a, b}, chain(6, 1)) == Blocks{0, 1, 0, 0, 1, 1});
  b.unable[1] = "b cannot run X on f32";
  CHECK(first({a, b, spare}, chain(6, 1), 2) == Blocks{0, 2, 0, 1, 1, 1});
  CHECK(first({a, spare}, chain(6, 1), 1) == Blocks{0, 1, 0, 0, 0, 0});
  CHECK(spread_blocks({a, spare}, chain(6, 1), 1)[0].elsewhere[1] == "a cannot run X on f32");
  CHECK(spread_blocks({a, b}, chain(6, 1)).empty());
}

TEST_CASE("many blocks on many devices: a grid of cuts, each device its share") {
  const std::vector<Bytes> weights(1000, 100);
  const auto d = device(weights, 30000);
  const auto dealt = first({d, d, d, d}, chain(1000, 1));
  for (std::size_t i = 0; i < 4; ++i) {
    const auto share = std::count(dealt.begin(), dealt.end(), i);
    CHECK(share >= 200);
    CHECK(share <= 300);
  }
  CHECK(std::is_sorted(dealt.begin(), dealt.end()));
}

TEST_CASE("state counts where it is: what others hold for each other takes nothing from a device between them") {
  // 900 bytes go from the first block to the last, past a device that has just 300.
  const auto devices = {device({100, 100, 100, 100}, 1300), device({100, 100, 100, 100}, 300)};
  std::vector<SpreadDevice> able = devices;
  able[0].unable = {"", "no", "no", ""};
  const auto spreads = spread_blocks(able, chain(4, 1, 900));
  REQUIRE_FALSE(spreads.empty());
  CHECK(spreads[0].device_of == Blocks{0, 1, 1, 0});
  CHECK(spreads[0].fits);
  CHECK(spreads[0].least == std::vector<Bytes>{100 + 10 + 900 + 1, 100 + 10 + 1 + 1});
  // Where the reader is elsewhere, it is on both; what the host writes once stays to the end.
  auto values = chain(4, 1);
  values.push_back({50, -1, {1}, 0, true, false});
  const auto once = spread_blocks(able, values);
  CHECK(once[0].least == std::vector<Bytes>{100 + 10 + 1, 100 + 10 + 1 + 1 + 50});
}

TEST_CASE("of several lanes, one at a time has both what a block reads last and what it writes") {
  SpreadValue in{.size = 40, .written_by = 0, .read_by = {1}, .lane = 20},
      out{.size = 60, .written_by = 1, .read_by = {2}, .lane = 30};
  const auto spreads = spread_blocks({device({0, 100, 0}, std::nullopt)}, {in, out});
  CHECK(spreads[0].least == std::vector<Bytes>{100 + 10 + 20 + 60});
}
