#include "device/ledger.h"

#include <doctest/doctest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

using namespace sluice;

TEST_CASE("ledger: refuses what does not fit and says what would") {
  Ledger ledger{1000};
  auto lease = ledger.reserve(Use::weights, 600);
  REQUIRE(lease);
  const auto refused = ledger.reserve(Use::state, 401);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::over_budget);
  CHECK(refused.error().needed == 1001);
  CHECK(refused.error().available == 1000);
  CHECK(ledger.reserve(Use::state, 400));
  CHECK_FALSE(ledger.reserve(Use::state, ~Bytes{0}));
  CHECK(ledger.report().total == 600);
  CHECK(ledger.report().peak == 1000);
  ledger.reset_peak();
  CHECK(ledger.report().peak == 600);
}

TEST_CASE("ledger: the backend account counts against the limit and changes nothing when refused") {
  Ledger ledger{1000};
  const auto lease = ledger.reserve(Use::arena, 700);
  REQUIRE(lease);
  CHECK(ledger.set_backend(300));
  CHECK_FALSE(ledger.reserve(Use::state, 1));
  const auto refused = ledger.set_backend(301);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().needed == 1001);
  CHECK(ledger.report().backend == 300);
  CHECK(ledger.set_backend(0));
  CHECK(ledger.report().peak == 1000);
}

TEST_CASE("ledger: a limit below what is booked refuses until enough is back") {
  Ledger ledger;
  auto a = ledger.reserve(Use::weights, 500);
  auto b = ledger.reserve(Use::cache, 500);
  REQUIRE((a && b));
  ledger.set_limit(600);
  CHECK_FALSE(ledger.reserve(Use::state, 1));
  *b = Lease{};
  CHECK(ledger.reserve(Use::state, 100));
  CHECK(ledger.set_backend(100));
  ledger.set_limit(50);
  CHECK(ledger.set_backend(90));  // less is always taken
}

TEST_CASE("ledger: lending moves bytes between uses and keeps the total") {
  Ledger ledger{1000};
  const auto booked = [&](Use use) { return ledger.report().by_use[static_cast<std::size_t>(use)]; };
  {
    auto arena = ledger.reserve(Use::arena, 1000);
    REQUIRE(arena);
    Lease slots = arena->lend(Use::slots, 300);
    Lease state = arena->lend(Use::state, 200);
    CHECK(arena->size() == 500);
    CHECK(booked(Use::arena) == 500);
    CHECK(booked(Use::slots) == 300);
    CHECK(ledger.report().total == 1000);
    arena->take_back(std::move(slots));
    CHECK(slots.size() == 0);
    CHECK(arena->size() == 800);
    CHECK(booked(Use::slots) == 0);
    arena->take_back(Lease{});
    CHECK(arena->size() == 800);
    const Lease moved = std::move(state);
    CHECK(booked(Use::state) == 200);
    CHECK(ledger.report().peak == 1000);
  }
  CHECK(ledger.report().total == 0);
}

TEST_CASE("ledger: never above its limit under four threads") {
  constexpr Bytes limit = 10'000;
  Ledger ledger{limit};
  std::atomic<Bytes> held = 0, most = 0;
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed)
    threads.emplace_back([&, seed] {
      std::mt19937 rng(seed);
      std::vector<Lease> leases;
      for (int i = 0; i < 5000; ++i) {
        if (leases.empty() || rng() % 2) {
          const Bytes size = rng() % 2000;
          auto lease = ledger.reserve(static_cast<Use>(rng() % kUses), size);
          if (!lease) {
            ++refused;
            continue;
          }
          const Bytes now = held += size;
          Bytes before = most;
          while (now > before && !most.compare_exchange_weak(before, now)) {
          }
          leases.push_back(std::move(*lease));
        } else if (rng() % 3 == 0) {
          auto& lease = leases[rng() % leases.size()];
          Lease part = lease.lend(static_cast<Use>(rng() % kUses), lease.size() / 2);
          if (rng() % 2) lease.take_back(std::move(part));
          held -= part.size();
        } else {
          std::swap(leases[rng() % leases.size()], leases.back());
          held -= leases.back().size();
          leases.pop_back();
        }
      }
      for (const auto& lease : leases) held -= lease.size();
    });
  for (auto& thread : threads) thread.join();
  CHECK(most <= limit);
  CHECK(refused > 0);
  CHECK(held == 0);
  CHECK(ledger.report().total == 0);
  CHECK(ledger.report().peak <= limit);
  for (const Bytes bytes : ledger.report().by_use) CHECK(bytes == 0);
}

TEST_CASE("shares: the limit is their sum, whoever comes or goes; each has a backend account of its own") {
  Ledger ledger;
  {
    Share one(ledger, 100);
    CHECK(ledger.report().limit == Bytes{100});
    REQUIRE(one.set_backend(10));
    auto lease = ledger.reserve(Use::arena, 90);
    REQUIRE(lease);
    CHECK_FALSE(one.set_backend(11));
    CHECK(one.backend() == 10);
    {
      Share two(ledger, 50);
      CHECK(ledger.report().limit == Bytes{150});
      REQUIRE(two.set_backend(5));
      CHECK(ledger.report().backend == 15);
      CHECK_FALSE(ledger.reserve(Use::arena, 46));
      CHECK(ledger.reserve(Use::arena, 45));
      two.set_limit(std::nullopt);
      CHECK_FALSE(ledger.report().limit);
      two.set_limit(~Bytes{0});  // with the other's, more than 2^64
      CHECK_FALSE(ledger.report().limit);
    }
    CHECK(ledger.report().limit == Bytes{100});
    CHECK(ledger.report().backend == 10);
    CHECK_FALSE(ledger.reserve(Use::arena, 1));
  }
  CHECK_FALSE(ledger.report().limit);
  CHECK(ledger.report().backend == 0);
  CHECK(ledger.report().total == 0);
}
