// Every fault at every place: a coded error, the books back where they began, and the next run right.
#include <doctest/doctest.h>

#include "device/refusal.h"
#include "io/faulty_files.h"
#include "support/rig.h"

using namespace sluice;
using namespace sluice::test;

namespace {

#ifdef SLUICE_SANITIZED
constexpr std::uint64_t kStride = 37;  // a sample
constexpr int kSeeds = 6;
#else
constexpr std::uint64_t kStride = 1;
constexpr int kSeeds = 200;
#endif

// A budget at which most blocks stream.
Bytes tight_budget(const Request& request) {
  auto rig = Rig::open({});
  REQUIRE(rig);
  auto prepared = (*rig)->prepare(request);
  REQUIRE(prepared);
  const Bytes smallest = (*prepared)->plan().smallest + (*prepared)->backend();
  const Bytes full = (*prepared)->plan().full + (*prepared)->backend();
  return smallest + (full - smallest) / 5;
}

Drawn wanted(const Request& request) {
  auto rig = Rig::open({});
  REQUIRE(rig);
  auto drawn = (*rig)->draw(request);
  REQUIRE(drawn);
  return std::move(*drawn);
}

// Draws with the n-th operation failing for n = 1, 1 + stride, … until a run meets no fault; after each fault the same rig
// draws right.
template <typename Arm>
int every_fault(const Arm& arm, std::initializer_list<Code> codes) {
  const Request request = one_step();
  const Drawn want = wanted(request);
  const Bytes budget = tight_budget(request);
  int faults = 0;
  for (std::uint64_t n = 1;; n += kStride) {
    CAPTURE(n);
    RigOptions options;
    options.budget = budget;
    options.tier = HostTier::disk;
    arm(options, n);
    auto rig = Rig::open(options);
    if (!rig) {  // opening reads headers: that may be the read that fails
      CHECK(std::find(codes.begin(), codes.end(), rig.error().code) != codes.end());
      ++faults;
      continue;
    }
    const Bytes before = (*rig)->device().ledger().report().total;
    auto drawn = (*rig)->draw(request);
    if (drawn) {
      CHECK(drawn->latents == want.latents);
      CHECK(drawn->pixels == want.pixels);
      CHECK(faults > 0);
      return faults;
    }
    ++faults;
    CHECK_MESSAGE(std::find(codes.begin(), codes.end(), drawn.error().code) != codes.end(), drawn.error().message);
    CHECK_FALSE(drawn.error().message.empty());
    // Without being told: a failed request gives back what it took.
    CHECK((*rig)->device().ledger().report().total == before);
    CHECK((*rig)->device().live_buffers() == 0);
    auto again = (*rig)->draw(request);
    REQUIRE_MESSAGE(again, again.error().message);
    CHECK(again->latents == want.latents);
    CHECK(again->pixels == want.pixels);
    CHECK((*rig)->device().high_water() <= budget);
  }
}

}  // namespace

TEST_CASE("the n-th device allocation fails, for every n") {
  const int faults = every_fault(
      [](RigOptions& o, std::uint64_t n) {
        o.sim.fail_alloc = n;
        o.sim.fail_allocs = kRefusalTries;  // fewer are mended by trying again
        o.sim.max_buffer = 2 * MiB;         // several buffers, so that there is something to roll back
      },
      {Code::device_oom});
  CHECK(faults > (kStride == 1 ? 1 : 0));
}

TEST_CASE("a driver that refuses once is asked again") {
  const Request request = one_step();
  const Drawn want = wanted(request);
  for (std::uint64_t n = 1; n <= 4; ++n) {
    CAPTURE(n);
    RigOptions options;
    options.sim.fail_alloc = n;
    options.sim.max_buffer = 2 * MiB;
    auto rig = Rig::open(options);
    REQUIRE(rig);
    auto drawn = (*rig)->draw(request);
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    CHECK(drawn->pixels == want.pixels);
  }
}

TEST_CASE("host memory for staging is refused: the next request works") {
  const Request request = one_step();
  const Drawn want = wanted(request);
  RigOptions options;
  options.budget = tight_budget(request);
  options.tier = HostTier::disk;
  options.sim.fail_host = 1;
  auto rig = Rig::open(options);
  REQUIRE(rig);
  const auto refused = (*rig)->draw(request);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::device_oom);
  auto again = (*rig)->draw(request);
  REQUIRE_MESSAGE(again, again.error().message);
  CHECK(again->pixels == want.pixels);
}

TEST_CASE("the n-th host allocation fails, for every n") {
  every_fault([](RigOptions& o, std::uint64_t n) { o.sim.fail_host = n; }, {Code::device_oom});
}

TEST_CASE("the n-th copy fails, for every n") {
  const int faults = every_fault([](RigOptions& o, std::uint64_t n) { o.sim.fail_copy = n; }, {Code::device_failed});
  CHECK(faults > (kStride == 1 ? 50 : 1));
}

TEST_CASE("the n-th computation fails, for every n") {
  const int faults = every_fault([](RigOptions& o, std::uint64_t n) { o.sim.fail_compute = n; }, {Code::device_failed});
  CHECK(faults > (kStride == 1 ? 50 : 1));
}

TEST_CASE("the n-th read fails, for every n") {
  const int faults = every_fault(
      [](RigOptions& o, std::uint64_t n) { o.files = std::make_shared<FaultyFiles>(system_files(), Faults{.fail_read = n}); },
      {Code::io});
  CHECK(faults > (kStride == 1 ? 50 : 1));
}

TEST_CASE("random delays of copies and computations with poisoned slots: the same bits") {
  Request request = small_request();
  const Drawn want = wanted(request);
  const Bytes budget = tight_budget(request);
  for (int seed = 1; seed <= kSeeds; ++seed) {
    CAPTURE(seed);
    RigOptions options;
    options.budget = budget;
    options.sim.delay_seed = static_cast<std::uint64_t>(seed);
    options.sim.delay_s = 100e-6;
    options.sim.poison = true;
    auto rig = Rig::open(options);
    REQUIRE(rig);
    auto drawn = (*rig)->draw(request);
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    CHECK(drawn->latents == want.latents);
    CHECK(drawn->pixels == want.pixels);
  }
}

TEST_CASE("cancelled at every event of the device's log: code cancelled, clean books, the next run right") {
  const Request request = one_step();
  const Drawn want = wanted(request);
  const Bytes budget = tight_budget(request);
  int cancelled = 0;
  for (std::uint64_t n = 0;; n += kStride) {
    CAPTURE(n);
    RigOptions options;
    options.budget = budget;
    auto rig = Rig::open(options);
    REQUIRE(rig);
    CancelToken cancel;
    (*rig)->device().on_event([&](const SimEvent& event) {
      if (event.index == n) cancel.cancel();
    });
    auto drawn = (*rig)->draw(request, cancel);
    (*rig)->device().on_event({});
    if (!cancel.cancelled()) {
      REQUIRE(drawn);
      CHECK(cancelled > 0);
      break;
    }
    if (drawn) {  // cancelled after the last block: the picture is there
      CHECK(drawn->pixels == want.pixels);
      continue;
    }
    ++cancelled;
    CHECK_MESSAGE(drawn.error().code == Code::cancelled, drawn.error().message);
    (*rig)->session().release();
    CHECK((*rig)->device().ledger().report().total == 0);
    if (n % 16 == 0) {
      auto again = (*rig)->draw(request);
      REQUIRE_MESSAGE(again, again.error().message);
      CHECK(again->latents == want.latents);
    }
  }
}
