#include "exec/request_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "exec/test_scale.h"

using namespace sluice;
using test::kSlow;

namespace {

/// Encode, denoise, decode: few sweeps of many blocks, many sweeps, and one sweep of large workspaces. Sizes in any unit, some
/// of them no multiple of the alignment; some blocks without weights, some usable in place, sometimes a narrow chunk.
std::vector<StageNeed> random_request(unsigned seed, int most_blocks, bool chunks, bool mappable) {
  std::mt19937 rng(seed);
  const Bytes alignment = Bytes{32} << (rng() % 4);
  const Bytes chunk = chunks ? align_up(700'000, alignment) : 0;
  std::vector<StageNeed> needs(3);
  for (std::size_t s = 0; s < needs.size(); ++s) {
    auto& cost = needs[s].cost;
    needs[s].component = static_cast<ComponentId>(s);
    cost.alignment = alignment;
    cost.chunk = chunk;
    cost.lanes = 1 + static_cast<int>(rng() % 2);
    cost.sweeps = s == 1 ? 2 + static_cast<int>(rng() % 20) : 1;
    cost.link_bytes_per_s = 1e6 * static_cast<double>(1 + rng() % 8);
    const int n = 1 + static_cast<int>(rng() % most_blocks);
    for (int b = 0; b < n; ++b) {
      const Bytes weights = rng() % 10 ? 1 + rng() % 300'000 : 0;
      cost.blocks.push_back({.weights = weights,
                             .workspace = rng() % (s == 2 ? 600'000 : 200'000),
                             .compute_s = static_cast<double>(rng() % 1000) / 1000});
      needs[s].mappable.push_back(mappable && rng() % 3 == 0);
    }
    const int period = n * cost.lanes;
    for (int i = 0; i < period; ++i)
      cost.state.push_back({rng() % 20'000, i, (i + static_cast<int>(rng() % std::min(8, period))) % period});
  }
  return needs;
}

Bytes size_of(const StageNeed& need, std::size_t block) {
  return align_up(need.cost.blocks[block].weights, need.cost.alignment);
}

Bytes weights_of(const std::vector<StageNeed>& needs) {
  Bytes sum = 0;
  for (const auto& need : needs)
    for (std::size_t b = 0; b < need.cost.blocks.size(); ++b) sum += size_of(need, b);
  return sum;
}

std::size_t main_of(const std::vector<StageNeed>& needs) {
  std::size_t most = 0;
  for (std::size_t s = 0; s < needs.size(); ++s)
    if (needs[s].cost.sweeps > needs[most].cost.sweeps) most = s;
  return most;
}

/// Everything the header promises of a plan, from the declarations alone.
void check_request(const std::vector<StageNeed>& needs, const RequestPlan& plan, Bytes budget) {
  CHECK(plan.taken() <= budget);
  REQUIRE(plan.stages.size() == needs.size());
  const Bytes alignment = needs[0].cost.alignment, chunk = needs[0].cost.chunk;
  CHECK(plan.zone % alignment == 0);
  CHECK(plan.shelves % alignment == 0);
  struct Range {
    Address from, to;
  };
  std::vector<Range> residents;
  Bytes mapped = 0, shelves = 0;
  bool inside = true, above = true, whole = true, aligned = true, kinds = true;
  for (std::size_t s = 0; s < needs.size(); ++s) {
    const auto& [stage, places] = plan.stages[s];
    CHECK(stage.transient <= plan.zone);
    REQUIRE(places.size() == needs[s].cost.blocks.size());
    const Address floor = std::max(stage.transient, plan.stages[main_of(needs)].plan.transient);
    for (std::size_t b = 0; b < places.size(); ++b) {
      const Bytes size = size_of(needs[s], b);
      const auto copy = std::find_if(stage.copies.begin(), stage.copies.end(), [&](auto& c) { return c.block == b; });
      switch (places[b].kind) {
        case WeightPlace::Kind::none: kinds = kinds && size == 0; break;
        case WeightPlace::Kind::streamed:
          kinds = kinds && copy != stage.copies.end() && places[b].address == copy->address;
          break;
        case WeightPlace::Kind::mapped:
          kinds = kinds && stage.resident[b] && needs[s].mappable[b];
          mapped += size;
          break;
        case WeightPlace::Kind::resident: {
          const Address at = places[b].address;
          kinds = kinds && stage.resident[b] && size > 0;
          if (places[b].any_shelf()) {
            shelves += size;
            break;
          }
          inside = inside && at + size <= plan.zone;
          above = above && at >= floor;
          aligned = aligned && at % alignment == 0;
          whole = whole && (chunk == 0 || at / chunk == (at + size - 1) / chunk);
          residents.push_back({at, at + size});
        }
      }
    }
  }
  CHECK(kinds);
  CHECK(inside);
  CHECK(above);
  CHECK(whole);
  CHECK(aligned);
  CHECK(mapped == plan.mapped);
  CHECK(shelves == plan.shelves);
  std::sort(residents.begin(), residents.end(), [](auto& a, auto& b) { return a.from < b.from; });
  bool disjoint = true;
  for (std::size_t i = 1; i < residents.size(); ++i) disjoint = disjoint && residents[i - 1].to <= residents[i].from;
  CHECK(disjoint);
}

std::size_t streamed(const RequestPlan& plan) {
  std::size_t count = 0;
  for (const auto& stage : plan.stages) count += stage.plan.copies.size();
  return count;
}

}  // namespace

TEST_CASE("plan_request: every budget from the smallest up works, below it is refused with that number") {
  for (unsigned seed = 0; seed < 200 / kSlow; ++seed) {
    CAPTURE(seed);
    const auto needs = random_request(seed, 25, seed % 2, seed % 3 == 0);
    std::mt19937 rng(seed);
    for (const auto policy : {Policy::interleaved, Policy::first_k, Policy::all_streamed}) {
      CAPTURE(policy_name(policy));
      const PlanOptions options{policy};
      const auto refused = plan_request(needs, 0, options);
      REQUIRE(!refused.has_value());
      CHECK(refused.error().code == Code::over_budget);
      const Bytes smallest = refused.error().needed;
      REQUIRE(smallest > 0);
      const auto below = plan_request(needs, smallest - 1, options);
      REQUIRE(!below.has_value());
      CHECK(below.error().needed == smallest);
      const Bytes all = weights_of(needs);
      // Budgets that are no multiple of the alignment among them.
      for (const Bytes budget : {smallest, smallest + 1, smallest + rng() % (all + 1), smallest + rng() % (all + 1),
                                 smallest + all / 10, smallest + all, 4 * (smallest + all)}) {
        CAPTURE(budget);
        const auto plan = plan_request(needs, budget, options);
        REQUIRE(plan.has_value());
        check_request(needs, *plan, budget);
        CHECK(plan->smallest == smallest);
        if (policy == Policy::all_streamed)
          for (const auto& stage : plan->stages) CHECK(stage.plan.resident_bytes == 0);
      }
    }
  }
}

TEST_CASE("plan_request: full is where everything stays, and one unit less streams something") {
  int streams = 0;
  for (unsigned seed = 0; seed < 200 / kSlow; ++seed) {
    CAPTURE(seed);
    const bool chunks = seed % 2;
    const auto needs = random_request(seed, 25, chunks, seed % 3 == 0);
    const Bytes alignment = needs[0].cost.alignment;
    const auto probe = plan_request(needs, Bytes{1} << 50, {});
    REQUIRE(probe.has_value());
    const Bytes full = probe->full;
    CHECK(probe->taken() == full);
    for (const auto policy : {Policy::interleaved, Policy::all_resident}) {
      const auto plan = plan_request(needs, full, {policy});
      REQUIRE(plan.has_value());
      CHECK(streamed(*plan) == 0);
      check_request(needs, *plan, full);
    }
    const auto refused = plan_request(needs, full - alignment, {Policy::all_resident});
    REQUIRE(!refused.has_value());
    CHECK(refused.error().needed == full);
    Bytes transient = 0;
    for (const auto& stage : probe->stages) transient = std::max(transient, stage.plan.transient);
    CHECK(full == transient + weights_of(needs));
    if (!chunks) {
      if (full - alignment >= probe->smallest && weights_of(needs) > 0) {
        const auto less = plan_request(needs, full - alignment, {});
        REQUIRE(less.has_value());
        check_request(needs, *less, full - alignment);
        // Streamed, or at least in the way of another stage, to be fetched again by the next request.
        Bytes highest = 0, lowest = UINT64_MAX;
        for (const auto& stage : less->stages) {
          highest = std::max(highest, stage.plan.transient);
          for (const auto& place : stage.places)
            if (place.kind == WeightPlace::Kind::resident && !place.any_shelf()) lowest = std::min(lowest, place.address);
        }
        CHECK((streamed(*less) > 0 || lowest < highest));
        streams += streamed(*less) > 0;
      }
    }
  }
  CHECK(streams > static_cast<int>(90 / kSlow));
}

TEST_CASE("plan_request: the stage that sweeps most uses the budget") {
  int tight = 0;
  for (unsigned seed = 0; seed < 200 / kSlow; ++seed) {
    CAPTURE(seed);
    const auto needs = random_request(seed, 40, false, false);
    std::mt19937 rng(seed);
    const auto probe = plan_request(needs, Bytes{1} << 50, {});
    REQUIRE(probe.has_value());
    const Bytes budget = probe->smallest + rng() % (probe->full - probe->smallest + 1);
    const auto plan = plan_request(needs, budget, {.max_in_flight = 2});
    REQUIRE(plan.has_value());
    const auto& stage = plan->stages[main_of(needs)].plan;
    if (stage.copies.empty()) continue;
    Bytes least = UINT64_MAX;
    for (const auto& copy : stage.copies) least = std::min(least, size_of(needs[main_of(needs)], copy.block));
    const Bytes used = stage.transient + stage.resident_bytes;
    CHECK((budget - used < least + needs[0].cost.alignment || static_cast<double>(used) >= 0.95 * static_cast<double>(budget)));
    ++tight;
  }
  CHECK(tight >= static_cast<int>(40 / kSlow));  // the claim was put to the test
}

TEST_CASE("plan_request: blocks used in place leave the arena and are counted") {
  auto needs = random_request(3, 10, false, false);
  for (auto& need : needs) need.mappable.assign(need.mappable.size(), true);
  const auto plan = plan_request(needs, Bytes{1} << 50, {});
  REQUIRE(plan.has_value());
  check_request(needs, *plan, plan->full);
  CHECK(plan->mapped == weights_of(needs));
  Bytes transient = 0;
  for (const auto& stage : plan->stages) transient = std::max(transient, stage.plan.transient);
  CHECK(plan->zone == transient);
  CHECK(plan->shelves == 0);
}

TEST_CASE("plan_request: blocks that fill chunks badly are still placed") {
  // Three fifths of a chunk each: one per chunk, two fifths of every chunk stay empty.
  std::vector<StageNeed> needs(1);
  auto& cost = needs[0].cost;
  cost.alignment = 32;
  cost.chunk = 1024 * 1024;
  cost.sweeps = 20;
  for (int b = 0; b < 40; ++b) cost.blocks.push_back({.weights = 640 * 1024, .workspace = 64 * 1024, .compute_s = 1});
  needs[0].mappable.assign(40, false);
  std::size_t before = 41;
  for (Bytes budget = 2 * MiB; budget <= 42 * MiB; budget += 333 * 1000) {
    CAPTURE(budget);
    const auto plan = plan_request(needs, budget, {});
    REQUIRE(plan.has_value());
    check_request(needs, *plan, budget);
    before = std::min(before, streamed(*plan));
  }
  CHECK(before == 0);
}

TEST_CASE("plan_request: what means nothing is refused") {
  CHECK(plan_request({}, GiB, {}).error().code == Code::invalid_argument);
  auto needs = random_request(1, 5, false, false);
  CHECK(plan_request(needs, GiB, {.max_in_flight = 0}).error().code == Code::invalid_argument);
  needs[2].cost.chunk = needs[2].cost.alignment;
  const auto refused = plan_request(needs, GiB, {});
  REQUIRE(!refused.has_value());
  CHECK(refused.error().code == Code::over_budget);
  CHECK(refused.error().needed == 0);
}

TEST_CASE("settle_in: a larger zone that is there is used, and nothing but places changes") {
  int settled = 0, not_settled = 0;
  for (unsigned seed = 0; seed < 200 / kSlow; ++seed) {
    CAPTURE(seed);
    const auto needs = random_request(seed, 20, seed % 2, seed % 3 == 0);
    std::mt19937 rng(seed);
    const auto probe = plan_request(needs, Bytes{1} << 50, {});
    REQUIRE(probe.has_value());
    const Bytes budget = probe->smallest + rng() % (probe->full - probe->smallest + 1);
    const auto plan = plan_request(needs, budget, {});
    REQUIRE(plan.has_value());
    const Bytes alignment = needs[0].cost.alignment;
    const Bytes zone = plan->zone + alignment * (1 + rng() % (plan->shelves / alignment + 1));
    auto other = *plan;
    if (!settle_in(other, needs, zone, budget)) {
      CHECK(other.zone == plan->zone);
      CHECK(other.shelves == plan->shelves);
      ++not_settled;
      continue;
    }
    ++settled;
    check_request(needs, other, budget);
    CHECK(other.zone >= zone);
    for (std::size_t s = 0; s < needs.size(); ++s) {
      CHECK(other.stages[s].plan.resident == plan->stages[s].plan.resident);
      for (std::size_t b = 0; b < needs[s].cost.blocks.size(); ++b)
        CHECK(other.stages[s].places[b].kind == plan->stages[s].places[b].kind);
    }
  }
  MESSAGE(settled, " settled, ", not_settled, " not");
  CHECK(settled > static_cast<int>(50 / kSlow));
}
