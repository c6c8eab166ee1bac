#include "pipeline/budget.h"

#include <doctest/doctest.h>

#include "device/sim_device.h"
#include "exec/test_null_device.h"

using namespace sluice;

namespace {

std::unique_ptr<SimDevice> device_reporting(Bytes free, Bytes total) {
  SimOptions options;
  options.threads = 1;
  auto device = SimDevice::open(options);
  REQUIRE(device);
  (*device)->set_report(free, total);
  return std::move(*device);
}

std::optional<Bytes> automatic(Bytes free, Bytes total, Bytes held, Bytes reserve) {
  const auto device = device_reporting(free, total);
  const auto bytes = resolve_budget({}, *device, held, reserve);
  REQUIRE(bytes);
  return *bytes;
}

}  // namespace

TEST_CASE("Budget::parse: sizes, what to leave free, auto; anything else is an error") {
  CHECK(Budget::parse("auto")->kind == Budget::Kind::automatic);
  const auto bytes = Budget::parse("6GiB");
  REQUIRE(bytes);
  CHECK(bytes->kind == Budget::Kind::bytes);
  CHECK(bytes->value == 6 * GiB);
  const auto leave = Budget::parse("-1GiB");
  REQUIRE(leave);
  CHECK(leave->kind == Budget::Kind::leave_free);
  CHECK(leave->value == GiB);
  for (const char* bad : {"", "-", "--1GiB", "GiB", "nan", "1e400GiB", "99999999999GiB", "automatic"}) {
    CAPTURE(bad);
    const auto parsed = Budget::parse(bad);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().code == Code::invalid_argument);
  }
}

TEST_CASE("automatic budget: what is free less the reserve, which is never more than an eighth of the device") {
  CHECK(automatic_reserve(256 * MiB, 8 * GiB) == 256 * MiB);
  CHECK(automatic_reserve(256 * MiB, 24 * MiB) == 3 * MiB);
  CHECK(automatic(7 * GiB, 8 * GiB, 0, 256 * MiB) == 7 * GiB - 256 * MiB);
  CHECK(automatic(24 * MiB, 24 * MiB, 0, 256 * MiB) == 21 * MiB);
  CHECK(automatic(MiB, 8 * GiB, 0, 256 * MiB) == Bytes{0});
}

TEST_CASE("automatic budget: what the asker holds counts as its own, also where less than the reserve is free") {
  CHECK(automatic(3 * MiB, 24 * MiB, 18 * MiB, 256 * MiB) == 18 * MiB);
  CHECK(automatic(MiB, 24 * MiB, 18 * MiB, 256 * MiB) == 16 * MiB);
  CHECK(automatic(0, 24 * MiB, 18 * MiB, 256 * MiB) == 15 * MiB);
  CHECK(automatic(24 * MiB, 24 * MiB, 18 * MiB, 256 * MiB) == 21 * MiB);
}

TEST_CASE("hostile reports: more free than there is means the total, less what our books have there") {
  constexpr Bytes kMost = ~Bytes{0};
  for (const Bytes free : {25 * MiB, kMost, kMost - 5 * MiB}) {
    const auto device = device_reporting(free, 24 * MiB);
    CHECK(*resolve_budget({}, *device, 0, 256 * MiB) == 21 * MiB);
    CHECK(*resolve_budget({Budget::Kind::leave_free, MiB}, *device, 0, 256 * MiB) == 23 * MiB);
    const auto lease = device->ledger().reserve(Use::arena, 10 * MiB);
    CHECK(*resolve_budget({}, *device, 0, 256 * MiB) == 11 * MiB);
    CHECK(*resolve_budget({}, *device, 4 * MiB, 256 * MiB) == 15 * MiB);
  }
}

// Reports of 0 and of 2^64−1.
TEST_CASE("hostile reports: unknown means no budget, never a wrapped number; a budget in bytes wins over all of them") {
  constexpr Bytes kMost = ~Bytes{0};
  struct Report {
    Bytes free, total;
  };
  for (const Report r : {Report{0, 0}, Report{kMost, kMost}, Report{24 * MiB, 0}, Report{0, kMost}}) {
    CAPTURE(r.free);
    CAPTURE(r.total);
    const auto device = device_reporting(r.free, r.total);
    const auto bytes = resolve_budget({}, *device, 0, 256 * MiB);
    REQUIRE(bytes);
    CHECK_FALSE(bytes->has_value());
    const auto fixed = resolve_budget({Budget::Kind::bytes, 6 * MiB}, *device, 0, 256 * MiB);
    REQUIRE(fixed);
    CHECK(*fixed == 6 * MiB);
    const auto leave = resolve_budget({Budget::Kind::leave_free, MiB}, *device, 0, 256 * MiB);
    REQUIRE_FALSE(leave);
    CHECK(leave.error().code == Code::invalid_argument);
  }
  CHECK(automatic(0, 24 * MiB, 0, 256 * MiB) == Bytes{0});
  CHECK(*resolve_budget({Budget::Kind::bytes, 6 * MiB}, *device_reporting(0, 24 * MiB), 0, 0) == 6 * MiB);
}

TEST_CASE("leave_free: exact, counts what is held, refused where it is more than there is") {
  const Budget leave{Budget::Kind::leave_free, 4 * MiB};
  CHECK(*resolve_budget(leave, *device_reporting(24 * MiB, 24 * MiB), 0, 256 * MiB) == 20 * MiB);
  CHECK(*resolve_budget(leave, *device_reporting(4 * MiB, 24 * MiB), 20 * MiB, 256 * MiB) == 20 * MiB);
  const auto refused = resolve_budget(leave, *device_reporting(4 * MiB, 24 * MiB), 0, 256 * MiB);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::invalid_argument);
}

TEST_CASE("resolve_budgets: devices of one pool share it, others do not") {
  struct Pooled final : test::NullDevice {
    Pooled(Ledger& pool, Bytes free, Bytes total) : NullDevice(32, GiB), pool_(pool), free_(free), total_(total) {}
    Ledger& ledger() override { return pool_; }
    MemoryView memory() const override { return {free_, total_, true}; }
    Ledger& pool_;
    Bytes free_, total_;
  };
  Ledger pool, card_books;
  Pooled cpu(pool, 24 * MiB, 32 * MiB), integrated(pool, 24 * MiB, 32 * MiB), card(card_books, 8 * MiB, 8 * MiB);
  const auto resolve = [&](const Budget& one, const Budget& other) {
    const auto budgets = resolve_budgets({{one, &cpu, 0}, {other, &integrated, 0}, {{}, &card, 0}}, 0);
    REQUIRE(budgets);
    CHECK((*budgets)[2] == 8 * MiB);
    return std::pair((*budgets)[0], (*budgets)[1]);
  };
  CHECK(resolve({}, {}) == std::pair(std::optional(12 * MiB), std::optional(12 * MiB)));
  CHECK(resolve({Budget::Kind::bytes, 20 * MiB}, {}) == std::pair(std::optional(20 * MiB), std::optional(4 * MiB)));
  CHECK(resolve({Budget::Kind::bytes, 30 * MiB}, {}) == std::pair(std::optional(30 * MiB), std::optional(Bytes{0})));
  CHECK(resolve({Budget::Kind::leave_free, 8 * MiB}, {}) ==
        std::pair(std::optional(Bytes{10066329}), std::optional(Bytes{15099494})));
}
