// Promise 1 and 2: the same bits in every placement, and never a byte above the budget, by the simulated device's own accounts.
#include <doctest/doctest.h>

#include <random>

#include "support/rig.h"

using namespace sluice;
using namespace sluice::test;

namespace {

#ifdef SLUICE_SANITIZED
constexpr int kBudgets = 8;
#else
constexpr int kBudgets = 64;
#endif

struct Limits {
  Bytes smallest = 0, full = 0, bound = 0;
};

Limits limits_of(const Request& request) {
  auto rig = Rig::open({});
  REQUIRE(rig);
  auto prepared = (*rig)->prepare(request);
  REQUIRE(prepared);
  Limits l;
  l.smallest = (*prepared)->plan().smallest + (*prepared)->backend();
  l.full = (*prepared)->plan().full + (*prepared)->backend();
  for (const auto& stage : (*prepared)->stages) l.bound = std::max(l.bound, stage.lower_bound());
  CHECK((*rig)->device().counters().allocs == 0);  // planning touches no device memory
  // The account of the backend stands beside what sluice places.
  CHECK(static_cast<double>((*prepared)->plan().smallest) <= 1.1 * static_cast<double>(l.bound));
  MESSAGE("smallest ", l.smallest, " full ", l.full, " bound ", l.bound, " backend ", (*prepared)->backend());
  return l;
}

Drawn reference(const Request& request) {
  auto rig = Rig::open({});
  REQUIRE(rig);
  auto drawn = (*rig)->draw(request);
  REQUIRE_MESSAGE(drawn, drawn.error().message);
  return std::move(*drawn);
}

}  // namespace

TEST_CASE(
    "every budget from the smallest to the full size, prefetch on and off, every tier: the same bits, never above the budget") {
  const Request request = small_request();
  const Limits limits = limits_of(request);
  const Drawn want = reference(request);
  REQUIRE(limits.smallest < limits.full);
  for (int i = 0; i < kBudgets; ++i) {
    const Bytes budget =
        limits.smallest + (limits.full - limits.smallest) * static_cast<Bytes>(i) / static_cast<Bytes>(kBudgets - 1);
    for (const int in_flight : {1, 3}) {
      for (const HostTier tier : {HostTier::mapped, HostTier::read, HostTier::disk}) {
        CAPTURE(budget);
        CAPTURE(in_flight);
        CAPTURE(static_cast<int>(tier));
        RigOptions options;
        options.budget = budget;
        options.tier = tier;
        options.plan.max_in_flight = in_flight;
        auto rig = Rig::open(options);
        REQUIRE(rig);
        auto drawn = (*rig)->draw(request);
        REQUIRE_MESSAGE(drawn, drawn.error().message);
        CHECK(drawn->latents == want.latents);
        CHECK(drawn->pixels == want.pixels);
        CHECK((*rig)->device().high_water() <= budget);

        // Copied = planned: residents once, streamed blocks each sweep.
        auto prepared = (*rig)->prepare(request);
        REQUIRE(prepared);
        Bytes copied = 0;
        for (std::size_t s = 0; s < 3; ++s) {
          const auto& stage = (*prepared)->stages[s];
          const auto& plan = (*prepared)->plan().stages[s];
          Bytes resident = 0, streamed = 0;
          for (std::uint32_t b = 0; b < stage.blocks(); ++b) {
            const Bytes size = (*rig)->store().layout({stage.spec().component, b}).size;
            if (plan.places[b].kind == WeightPlace::Kind::resident) resident += size;
            if (plan.places[b].kind == WeightPlace::Kind::streamed) streamed += size;
          }
          CHECK(drawn->runs[s].copied_steady == (stage.spec().sweeps > 1 ? streamed : streamed + resident));
          CHECK(plan.plan.bytes_per_sweep == streamed);
          copied += resident + streamed * static_cast<Bytes>(stage.spec().sweeps);
        }
        CHECK((*rig)->device().counters().weight_bytes_set == copied);
        // No buffer per block, and none after the arena.
        const Bytes chunk = Arena::chunk_size_for((*rig)->device().info());
        CHECK((*rig)->device().live_buffers() <= 8 + static_cast<int>(budget / chunk));
        CHECK((*rig)->device().counters().allocs == static_cast<std::uint64_t>((*rig)->device().live_buffers()));
      }
    }
  }
}

TEST_CASE("the smallest budget: it works, one page less is refused before anything is allocated, and every larger one works") {
  const Request request = small_request();
  const Limits limits = limits_of(request);
  const auto run = [&](Bytes budget) {
    RigOptions options;
    options.budget = budget;
    auto rig = Rig::open(options);
    REQUIRE(rig);
    auto drawn = (*rig)->draw(request);
    if (!drawn) {
      CHECK(drawn.error().code == Code::over_budget);
      CHECK(drawn.error().needed == limits.smallest);
      CHECK((*rig)->device().counters().allocs == 0);
      CHECK((*rig)->device().counters().computes == 0);
      CHECK((*rig)->device().ledger().report().total == 0);
    } else {
      CHECK((*rig)->device().high_water() <= budget);
    }
    return drawn.has_value();
  };
  CHECK(run(limits.smallest));
  CHECK_FALSE(run(limits.smallest - 4 * KiB));
  CHECK_FALSE(run(limits.smallest - 1));
  CHECK_FALSE(run(0));
  std::mt19937_64 random(11);
  for (int i = 0; i < kBudgets / 4; ++i) {
    const Bytes above = limits.smallest + random() % (limits.full - limits.smallest + MiB);
    CAPTURE(above);
    CHECK(run(above));
  }
}

TEST_CASE("buffers of limited size: chunks change nothing but their number") {
  const Request request = small_request();
  const Drawn want = reference(request);
  for (const Bytes largest : {2 * MiB, 3 * MiB, 8 * MiB}) {
    CAPTURE(largest);
    RigOptions options;
    options.sim.max_buffer = largest;
    Bytes smallest = 0;
    {
      auto rig = Rig::open(options);
      REQUIRE(rig);
      auto prepared = (*rig)->prepare(request);
      REQUIRE_MESSAGE(prepared, prepared.error().message);
      smallest = (*prepared)->plan().smallest + (*prepared)->backend();
    }
    for (const Bytes budget : {smallest, smallest + smallest / 2, 4 * smallest}) {
      CAPTURE(budget);
      options.budget = budget;
      auto rig = Rig::open(options);
      REQUIRE(rig);
      auto drawn = (*rig)->draw(request);
      REQUIRE_MESSAGE(drawn, drawn.error().message);
      CHECK(drawn->latents == want.latents);
      CHECK(drawn->pixels == want.pixels);
      CHECK((*rig)->device().high_water() <= budget);
      CHECK((*rig)->device().live_buffers() <= 8 + static_cast<int>(budget / largest));
    }
  }
}

TEST_CASE("a second request: no plan, no buffer, and with everything resident no byte is copied or read again") {
  const Request request = small_request();
  for (const bool all : {true, false}) {
    CAPTURE(all);
    RigOptions options;
    options.tier = HostTier::read;
    const Limits limits = limits_of(request);
    options.budget = all ? limits.full : (limits.smallest + limits.full) / 2;
    auto rig = Rig::open(options);
    REQUIRE(rig);
    auto first = (*rig)->draw(request);
    REQUIRE(first);
    const auto counters = (*rig)->device().counters();
    const Bytes read = (*rig)->store().counters().bytes_read;
    const int plans = (*rig)->session().counters().plans_built;
    auto second = (*rig)->draw(request);
    REQUIRE(second);
    CHECK(second->latents == first->latents);
    CHECK(second->pixels == first->pixels);
    CHECK((*rig)->session().counters().plans_built == plans);
    CHECK((*rig)->device().counters().allocs == counters.allocs);
    CHECK((*rig)->store().counters().bytes_read == read);
    if (all) CHECK((*rig)->device().counters().weight_bytes_set == counters.weight_bytes_set);
  }
}

TEST_CASE("prompts of two lengths: two plans over twenty alternations, the first picture comes back") {
  RigOptions options;
  options.budget = (limits_of(small_request()).smallest + limits_of(small_request()).full) / 2;
  auto rig = Rig::open(options);
  REQUIRE(rig);
  Request short_one = small_request(), long_one = small_request();
  short_one.steps = long_one.steps = 1;
  for (int i = 0; i < 30; ++i) long_one.negative_prompt += "blurry low quality ";
  std::optional<Drawn> first[2];
  for (int i = 0; i < 20; ++i) {
    auto drawn = (*rig)->draw(i % 2 ? long_one : short_one);
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    if (!first[i % 2]) {
      first[i % 2] = std::move(*drawn);
    } else {
      CHECK(drawn->latents == first[i % 2]->latents);
      CHECK(drawn->pixels == first[i % 2]->pixels);
    }
  }
  CHECK((*rig)->session().counters().plans_built == 2);
}
