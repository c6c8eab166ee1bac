#include "exec/pack.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>

#include "exec/test_scale.h"

using namespace sluice;
using test::kSlow;

namespace {

bool alive(const Extent& e, int tick) {
  return e.from <= e.to ? e.from <= tick && tick <= e.to : tick >= e.from || tick <= e.to;
}

/// Tick by tick, pair by pair: no arithmetic in common with the packer.
void check_packing(const std::vector<Extent>& extents, const Packing& packing, int period, Bytes alignment, Bytes chunk) {
  REQUIRE(packing.offsets.size() == extents.size());
  Bytes highest = 0;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const Bytes begin = packing.offsets[i], end = begin + align_up(extents[i].size, alignment);
    highest = std::max(highest, end);
    CHECK(begin % alignment == 0);
    if (chunk && extents[i].size && extents[i].size <= chunk) CHECK(begin / chunk == (end - 1) / chunk);
    if (chunk && extents[i].size > chunk) CHECK(begin % chunk == 0);
  }
  CHECK(packing.size == highest);
  bool disjoint = true;
  for (int tick = 0; tick < period; ++tick) {
    std::vector<std::pair<Bytes, Bytes>> now;
    for (std::size_t i = 0; i < extents.size(); ++i)
      if (extents[i].size && alive(extents[i], tick))
        now.push_back({packing.offsets[i], packing.offsets[i] + align_up(extents[i].size, alignment)});
    std::sort(now.begin(), now.end());
    for (std::size_t i = 1; i < now.size(); ++i) disjoint = disjoint && now[i - 1].second <= now[i].first;
  }
  CHECK(disjoint);
}

std::vector<Extent> random_extents(std::mt19937& rng, int period, int most) {
  std::vector<Extent> extents(1 + rng() % most);
  for (auto& e : extents) {
    e.size = rng() % 8 == 0 ? rng() % 20000 : rng() % 2000;
    e.from = static_cast<int>(rng() % period);
    const int length = rng() % 10 == 0 ? period : 1 + static_cast<int>(rng() % std::min(period, 8));
    e.to = (e.from + length - 1) % period;
  }
  return extents;
}

}  // namespace

TEST_CASE("pack_extents: disjoint, aligned, within chunks, never below the load and rarely far above it") {
  // On a circle the load is not always reachable (see the odd circle below): the tighter bound is for extents that do not wrap.
  for (const bool wraps : {true, false}) {
    double worst = 1, sum = 0;
    int cases = 0;
    for (unsigned seed = 0; seed < 1500 / kSlow; ++seed) {
      CAPTURE(seed);
      std::mt19937 rng(seed);
      const int period = 1 + static_cast<int>(rng() % 60);
      const Bytes alignment = Bytes{1} << (rng() % 8);
      auto extents = random_extents(rng, period, 60);
      if (!wraps)
        for (auto& e : extents) e.to = std::max(e.from, e.to);
      const auto packing = pack_extents(extents, period, alignment, 0);
      check_packing(extents, packing, period, alignment, 0);
      const Bytes load = packing_load(extents, period, alignment);
      CHECK(packing.size >= load);
      if (load > 0) {
        const double ratio = static_cast<double>(packing.size) / static_cast<double>(load);
        worst = std::max(worst, ratio);
        sum += ratio;
        ++cases;
      }
      const Bytes chunk = align_up(8192 + rng() % 30000, alignment);
      check_packing(extents, pack_extents(extents, period, alignment, chunk), period, alignment, chunk);
    }
    MESSAGE("size / load: mean " << sum / cases << ", worst " << worst
                                 << std::string(wraps ? " on the circle" : " on the line"));
    CHECK(sum / cases <= (wraps ? 1.01 : 1.002));
    CHECK(worst <= (wraps ? 1.4 : 1.05));
  }
}

TEST_CASE("pack_extents: what can be packed to the load is") {
  // Equal slots, two at a time: two places whatever the number of blocks, across the wrap too.
  std::vector<Extent> slots;
  for (int b = 0; b < 60; ++b) slots.push_back({1 << 20, (b + 59) % 60, b});
  CHECK(pack_extents(slots, 60, 256, 0).size == 2u << 20);
  // A long-lived tensor beside a large and a small workspace.
  const std::vector<Extent> mixed = {{100, 0, 9}, {900, 0, 4}, {100, 5, 9}, {64, 3, 7}};
  CHECK(pack_extents(mixed, 10, 4, 0).size == packing_load(mixed, 10, 4));
}

TEST_CASE("pack_extents: an odd circle of pairs needs three places, not two") {
  std::vector<Extent> slots;
  for (int b = 0; b < 5; ++b) slots.push_back({64, (b + 4) % 5, b});
  CHECK(packing_load(slots, 5, 64) == 128);
  CHECK(pack_extents(slots, 5, 64, 0).size == 192);
}

TEST_CASE("packing_load: the busiest tick, by hand and by brute force") {
  CHECK(packing_load(std::vector<Extent>{}, 4, 32) == 0);
  CHECK(packing_load(std::vector<Extent>{{10, 3, 0}, {5, 0, 0}, {40, 1, 2}}, 4, 1) == 40);
  CHECK(packing_load(std::vector<Extent>{{10, 3, 0}, {35, 0, 0}, {40, 1, 2}}, 4, 1) == 45);
  for (unsigned seed = 0; seed < 200 / kSlow; ++seed) {
    std::mt19937 rng(seed);
    const int period = 1 + static_cast<int>(rng() % 40);
    const auto extents = random_extents(rng, period, 40);
    Bytes most = 0;
    for (int tick = 0; tick < period; ++tick) {
      Bytes now = 0;
      for (const auto& e : extents)
        if (alive(e, tick)) now += align_up(e.size, 32);
      most = std::max(most, now);
    }
    CHECK(packing_load(extents, period, 32) == most);
  }
}

TEST_CASE("pack_extents: empty objects, no objects, objects larger than a chunk") {
  CHECK(pack_extents({}, 1, 32, 0).size == 0);
  const std::vector<Extent> empty = {{0, 0, 3}, {0, 2, 1}};
  CHECK(pack_extents(empty, 4, 32, 64).size == 0);
  const std::vector<Extent> large = {{64, 0, 3}, {300, 0, 3}, {64, 0, 3}};
  const auto packing = pack_extents(large, 4, 32, 128);
  check_packing(large, packing, 4, 32, 128);
}
