#include "device/refusal.h"

#include <doctest/doctest.h>

#include <chrono>

#include "device/sim_device.h"
#include "device/test_graphs.h"

using namespace sluice;

namespace {

std::unique_ptr<SimDevice> open_sim(SimOptions options) {
  options.threads = 1;
  auto sim = SimDevice::open(options);
  REQUIRE(sim);
  return std::move(*sim);
}

Status take(SimDevice& sim, Bytes size) {
  SLUICE_TRY(sim.allocate(size));
  return {};
}

}  // namespace

TEST_CASE("a refusal is outlasted as often as is said, and not once more") {
  for (const int refusals : {1, kRefusalTries - 1, kRefusalTries}) {
    CAPTURE(refusals);
    auto sim = open_sim({.fail_alloc = 1, .fail_allocs = static_cast<std::uint64_t>(refusals)});
    int tries = 0, ways = 0;
    const auto done = outlast_refusal(*sim, [&] { return ++tries, take(*sim, 100); }, [&] { ++ways; });
    CHECK(done.has_value() == (refusals < kRefusalTries));
    CHECK(tries == std::min(refusals + 1, kRefusalTries));
    CHECK(ways == (refusals > 1));
    if (done) continue;
    CHECK(done.error().code == Code::device_oom);
    CHECK(done.error().needed == 100);
    for (const char* part : {"64.0 GiB of 64.0 GiB free", "asked 10 times", "the driver's own limits"})
      CHECK_MESSAGE(done.error().message.find(part) != std::string::npos, done.error().message);
  }
}

TEST_CASE("memory that comes free late is waited for; what is not free says so; other errors are not waited for") {
  for (const char* late : {"sim:threads=1,memory=1MB,late-free=30ms", "sim:threads=1,memory=1MB,late-free=5"}) {
    CAPTURE(late);
    auto sim = open_device(late);
    REQUIRE(sim);
    (*sim)->allocate(1'000'000)->reset();
    DeviceBuffer buffer;
    CHECK(outlast_refusal(**sim, [&]() -> Status {
      SLUICE_ASSIGN(buffer, (*sim)->allocate(600'000));
      return {};
    }));
    const auto full = outlast_refusal(**sim, [&]() -> Status {
      SLUICE_TRY((*sim)->allocate(500'000));
      return {};
    });
    REQUIRE_FALSE(full);
    CHECK(full.error().available == 400'000);
    CHECK_MESSAGE(full.error().message.find("lower the device budget, or close") != std::string::npos, full.error().message);
  }
  auto sim = open_sim({});
  int tries = 0;
  const auto invalid = outlast_refusal(*sim, [&] { return ++tries, take(*sim, 0); });
  CHECK(invalid.error().code == Code::invalid_argument);
  CHECK(tries == 1);
}

TEST_CASE("a submit that is refused for buffers that go late is done in the end, else refused with their number") {
  TestProduct product(64, 32, 8);
  auto sim = open_sim({.max_submit_buffers = 1, .late_free_s = 0.02});
  auto arena = Arena::open(*sim, product.bytes(*sim)).value();
  product.bind(*sim, arena);
  auto other = sim->allocate(1);
  REQUIRE(other);
  const auto start = std::chrono::steady_clock::now();
  const auto refused = submit(*sim, product.graph(), 0, CancelToken{});
  REQUIRE_FALSE(refused);
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(100));
  CHECK(refused.error().code == Code::device_oom);
  for (const char* part : {"submit", "2 buffers are alive", "asked 10 times", "the driver's own limits"})
    CHECK_MESSAGE(refused.error().message.find(part) != std::string::npos, refused.error().message);
  other->reset();
  REQUIRE(submit(*sim, product.graph(), 0, CancelToken{}));
  CHECK(product.result(*sim) == product.expected());
}
