// Devices that change, lie or refuse: what a report of free memory may do to a plan, and what a driver's limits look like.
#include <doctest/doctest.h>

#include "pipeline/budget.h"
#include "sluice/engine.h"
#include "support/rig.h"

using namespace sluice;
using namespace sluice::test;

namespace {

constexpr Bytes kReserve = 256 * MiB;
constexpr Bytes kMost = ~Bytes{0};

Drawn wanted() {
  auto rig = Rig::open({});
  REQUIRE(rig);
  auto drawn = (*rig)->draw(one_step());
  REQUIRE(drawn);
  return std::move(*drawn);
}

struct Limits {
  Bytes smallest = 0, full = 0;
};
Limits limits() {
  auto rig = Rig::open({});
  REQUIRE(rig);
  auto prepared = (*rig)->prepare(one_step());
  REQUIRE(prepared);
  return {(*prepared)->plan().smallest + (*prepared)->backend(), (*prepared)->plan().full + (*prepared)->backend()};
}

bool refused_an_allocation(SimDevice& device) {
  for (const auto& event : device.log())
    if (event.kind == SimEvent::Kind::alloc && !event.ok) return true;
  return false;
}

// A rig whose budget is automatic, as the engine does it: asked when opened and before each request.
class Automatic {
 public:
  explicit Automatic(Bytes memory, Budget budget = {}) : budget_(budget) {
    RigOptions options;
    options.sim.memory = memory;
    auto rig = Rig::open(options);
    REQUIRE(rig);
    rig_ = std::move(*rig);
    auto bytes = resolve_budget(budget_, rig_->device(), 0, kReserve);
    REQUIRE(bytes);
    rig_->set_budget(*bytes);
  }
  Result<Drawn> draw() {
    SLUICE_TRY(follow_one(budget_, kReserve, rig_->memory()));
    return rig_->draw(one_step());
  }
  Rig& rig() { return *rig_; }
  int plans() { return rig_->session().counters().plans_built; }
  Bytes budget() { return rig_->memory().budget().value_or(0); }

 private:
  Budget budget_;
  std::unique_ptr<Rig> rig_;
};

}  // namespace

// Another program takes memory: planning rests on the first measurement; or measuring anew plans anew every time.
TEST_CASE("a dip and a recovery between requests: one new plan each, nothing refused, the same picture") {
  const Limits l = limits();
  const Drawn want = wanted();
  const Bytes memory = 2 * l.full;
  Automatic automatic(memory);
  SimDevice& device = automatic.rig().device();
  // Another program holds this much of the device.
  const auto report = [&](Bytes others) {
    const auto books = device.ledger().report();
    REQUIRE(others <= memory - books.total - books.backend);
    device.set_report(memory - books.total - books.backend - others, memory);
  };
  const auto draw = [&] {
    auto drawn = automatic.draw();
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    CHECK(drawn->pixels == want.pixels);
    CHECK_FALSE(refused_an_allocation(device));
  };
  for (int i = 0; i < 4; ++i) {
    report(0);
    draw();
  }
  CHECK(automatic.plans() == 1);
  const Bytes before = automatic.budget();
  CHECK(before == memory - memory / 8);

  // It takes all that this one does not hold.
  const auto held = device.ledger().report();
  const Bytes others = memory - held.total - held.backend;
  for (int i = 0; i < 5; ++i) {
    report(others - static_cast<Bytes>(i % 2) * (memory / 64));  // free memory flutters
    draw();
    const auto books = device.ledger().report();
    CHECK(books.total + books.backend <= memory - others - memory / 8);
    CHECK(automatic.plans() == 2);
  }
  CHECK(automatic.budget() == memory - others - memory / 8);

  for (int i = 0; i < 4; ++i) {
    report(0);
    draw();
    CHECK(automatic.plans() == 2);  // the first one fits again
  }
  CHECK(automatic.budget() == before);
}

TEST_CASE("a dip below the smallest budget is a refusal with the numbers, and over when the memory is back") {
  const Limits l = limits();
  const Drawn want = wanted();
  const Bytes memory = 2 * l.full;
  Automatic automatic(memory);
  REQUIRE(automatic.draw());
  SimDevice& device = automatic.rig().device();
  automatic.rig().session().release();
  device.set_report(l.smallest / 2, memory);
  auto refused = automatic.draw();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::over_budget);
  CHECK(refused.error().needed == l.smallest);
  CHECK(device.ledger().report().total == 0);
  CHECK_FALSE(refused_an_allocation(device));
  device.set_report(memory, memory);
  auto back = automatic.draw();
  REQUIRE_MESSAGE(back, back.error().message);
  CHECK(back->pixels == want.pixels);
}

// What a driver may say, and what becomes of each kind of budget.
namespace {

enum class Becomes {
  figure,       ///< a budget in bytes, by the report as far as it can be: never more than the total
  unlimited,    ///< allocation itself decides
  over_budget,  ///< refused, with the smallest budget that works
  invalid,      ///< refused when the engine is opened: there is nothing to leave free of
};

struct HostileRow {
  const char* what;
  Bytes free, total;
  bool known;
  Becomes automatic, leave_free;
};

std::vector<HostileRow> hostile_rows(Bytes smallest, Bytes memory) {
  using enum Becomes;
  return {
      {"the truth", memory, memory, true, figure, figure},
      {"nothing is free", 0, memory, true, over_budget, invalid},
      {"less free than a request needs", smallest / 2, memory, true, over_budget, over_budget},
      {"less in all than a request needs", smallest / 2, smallest / 2, true, over_budget, over_budget},
      {"no memory at all", 0, 0, false, unlimited, invalid},
      {"free memory of a device that has none", memory, 0, false, unlimited, invalid},
      {"2^64 - 1 of both", kMost, kMost, false, unlimited, invalid},
      {"nothing free of 2^64 - 1", 0, kMost, false, unlimited, invalid},
      {"one byte more free than there is", memory + 1, memory, false, figure, figure},
      {"twice as much free", 2 * memory, memory, false, figure, figure},
      {"2^64 - 1 free", kMost, memory, false, figure, figure},
      {"one byte below zero", Bytes{0} - 1, memory, false, figure, figure},
      {"1 MiB below zero, as a huge number", Bytes{0} - MiB, memory, false, figure, figure},
      {"the same of a device smaller than a request", Bytes{0} - MiB, smallest / 2, false, over_budget, over_budget},
  };
}

}  // namespace

TEST_CASE("hostile reports when an engine is opened: what becomes of an automatic, a leave-free and an explicit budget") {
  const Limits l = limits();
  const Drawn want = wanted();
  const Bytes memory = 2 * l.full, leave = memory / 10;
  for (const HostileRow& row : hostile_rows(l.smallest, memory)) {
    CAPTURE(row.what);
    const std::string device = "sim:threads=1,free=" + std::to_string(row.free) + ",total=" + std::to_string(row.total);
    struct Asked {
      Budget budget;
      Becomes becomes;
      Bytes bytes;
    };
    // Nothing is ever taken of what was to stay free, and an explicit budget is what was asked for, whatever is reported.
    const Bytes keep = std::min(kReserve, row.total / 8), free = std::min(row.free, row.total);
    const Asked all[] = {
        {{}, row.automatic, free - std::min(keep, free)},
        {{Budget::Kind::leave_free, leave}, row.leave_free, free - std::min(leave, free)},
        {{Budget::Kind::bytes, l.smallest}, Becomes::figure, l.smallest},
    };
    for (const Asked& asked : all) {
      CAPTURE(static_cast<int>(asked.budget.kind));
      auto engine = Engine::open(engine_on(device, asked.budget));
      if (asked.becomes == Becomes::invalid) {
        REQUIRE_FALSE(engine);
        CHECK(engine.error().code == Code::invalid_argument);
        continue;
      }
      // What leaves nothing at all may be refused when opened or when asked to draw: in words and numbers either way.
      if (!engine && asked.becomes == Becomes::over_budget) {
        CHECK(asked.bytes == 0);
        CHECK(engine.error().code == Code::invalid_argument);
        continue;
      }
      REQUIRE_MESSAGE(engine, engine.error().message);
      auto made = (*engine)->generate(one_step(), {}, {});
      if (asked.becomes == Becomes::over_budget) {
        REQUIRE_FALSE(made);
        CHECK(made.error().code == Code::over_budget);
        CHECK(made.error().needed == l.smallest);
        CHECK(made.error().available == asked.bytes);
        continue;
      }
      REQUIRE_MESSAGE(made, made.error().message);
      CHECK(made->pictures[0].latent == want.latents[0]);
      CHECK(made->plan.device_known == row.known);
      CHECK(made->plan.unlimited == (asked.becomes == Becomes::unlimited));
      if (asked.becomes == Becomes::figure) {
        CHECK(made->plan.budget == asked.bytes);
        CHECK(made->ledger_peak <= asked.bytes);
      }
    }
  }
}

TEST_CASE("hostile reports between requests: what is not believed changes nothing, what is true is followed") {
  const Limits l = limits();
  const Drawn want = wanted();
  const Bytes memory = 2 * l.full;
  Automatic automatic(memory);
  REQUIRE(automatic.draw());
  SimDevice& device = automatic.rig().device();
  const Bytes budget = automatic.budget();
  for (const HostileRow& row : hostile_rows(l.smallest, memory)) {
    if (row.known) continue;
    CAPTURE(row.what);
    device.set_report(row.free, row.total);
    auto drawn = automatic.draw();
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    CHECK(drawn->pixels == want.pixels);
    CHECK(automatic.plans() == 1);
    CHECK(automatic.budget() == budget);
  }
  // More is in use than there is, which a driver may say in two ways. As a huge number it is no figure, and what was planned
  // stays. In plain words it is a budget that was really exceeded: less in all than is booked.
  const Bytes booked = device.ledger().report().total;
  const Bytes total = l.smallest / 2;
  REQUIRE(total < booked);
  device.set_report(total - booked, total);
  REQUIRE(automatic.draw());
  CHECK(automatic.budget() == budget);
  device.set_report(0, total);
  auto refused = automatic.draw();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::over_budget);
  CHECK(refused.error().needed == l.smallest);
  CHECK(refused.error().available == total - total / 8);
  CHECK_FALSE(refused_an_allocation(device));
  device.set_report(memory, memory);
  auto back = automatic.draw();
  REQUIRE_MESSAGE(back, back.error().message);
  CHECK(back->pixels == want.pixels);
}

// An explicit setting wins over a measurement.
TEST_CASE("a budget in bytes is not moved by any report") {
  const Limits l = limits();
  Automatic fixed(4 * l.full, Budget{Budget::Kind::bytes, l.full});
  REQUIRE(fixed.draw());
  for (const Bytes free : {Bytes{0}, MiB, 4 * l.full, kMost}) {
    fixed.rig().device().set_report(free, 4 * l.full);
    REQUIRE(fixed.draw());
    CHECK(fixed.budget() == l.full);
    CHECK(fixed.plans() == 1);
  }
}

TEST_CASE("leave-free holds from request to request though the first one took all the rest") {
  const Limits l = limits();
  const Bytes memory = (l.smallest + l.full) / 2;
  Automatic leave(memory, Budget{Budget::Kind::leave_free, memory / 10});
  for (int i = 0; i < 3; ++i) {
    auto drawn = leave.draw();
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    CHECK(leave.rig().device().high_water() <= memory - memory / 10);
  }
  CHECK(leave.plans() == 1);
}

// A set-up that is small but sufficient is refused by a reserve made for large cards.
TEST_CASE("a device just large enough works with an automatic budget") {
  const Limits l = limits();
  const Drawn want = wanted();
  const Bytes memory = (l.smallest * 8 + 6) / 7 + 8;
  auto engine = Engine::open(engine_on("sim:threads=1,memory=" + std::to_string(memory)));
  REQUIRE_MESSAGE(engine, engine.error().message);
  for (int i = 0; i < 2; ++i) {
    auto made = (*engine)->generate(one_step(), {}, {});
    REQUIRE_MESSAGE(made, made.error().message);
    CHECK(made->pictures[0].latent == want.latents[0]);
    CHECK(made->ledger_peak <= memory - memory / 8);
  }
}

// A single tensor above the device's largest buffer.
TEST_CASE("buffers smaller than a tensor: asked for all the same, then refused before anything is computed, by name") {
  for (const Bytes largest : {Bytes{1}, Bytes{64}, 4 * KiB, 64 * KiB, 256 * KiB}) {
    CAPTURE(largest);
    RigOptions options;
    options.sim.max_buffer = largest;
    auto rig = Rig::open(options);
    REQUIRE(rig);
    auto drawn = (*rig)->draw(one_step());
    REQUIRE_FALSE(drawn);
    CHECK(drawn.error().code == Code::device_oom);
    CHECK_MESSAGE(
        drawn.error().message.find(largest < 16 * KiB ? "encode: block 'embeddings'" : ": block '") != std::string::npos,
        drawn.error().message);
    CHECK((*rig)->device().counters().computes == 0);
    CHECK((*rig)->device().ledger().report().total == 0);
  }
}

// For some drivers the largest buffer is a preference.
TEST_CASE("an object above the preferred buffer is asked for alone, and drawn with") {
  const Drawn want = wanted();
  for (const Bytes preferred : {Bytes{64}, 64 * KiB, 300 * KiB}) {
    CAPTURE(preferred);
    RigOptions options;
    options.sim.preferred_buffer = preferred;
    options.budget = (limits().smallest + limits().full) / 2;
    auto rig = Rig::open(options);
    REQUIRE(rig);
    auto drawn = (*rig)->draw(one_step());
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    CHECK(drawn->pixels == want.pixels);
    CHECK((*rig)->device().high_water() <= *options.budget);
  }
}

// The driver refuses though memory is free: too many live buffers.
TEST_CASE("a cap on live buffers: device_oom with their number, clean books; within the cap it works") {
  const Drawn want = wanted();
  for (const int cap : {1, 3, 64}) {
    CAPTURE(cap);
    RigOptions options;
    options.sim.max_buffer = 2 * MiB;
    options.sim.max_buffers = cap;
    auto rig = Rig::open(options);
    REQUIRE(rig);
    auto drawn = (*rig)->draw(one_step());
    if (cap == 64) {
      REQUIRE_MESSAGE(drawn, drawn.error().message);
      CHECK(drawn->pixels == want.pixels);
      continue;
    }
    REQUIRE_FALSE(drawn);
    CHECK(drawn.error().code == Code::device_oom);
    const std::string alive = cap == 1 ? "1 buffer is alive" : std::to_string(cap) + " buffers are alive";
    for (const std::string& part : {alive, std::string("asked 10 times"), std::string("the driver's own limits")})
      CHECK_MESSAGE(drawn.error().message.find(part) != std::string::npos, drawn.error().message);
    (*rig)->session().release();
    CHECK((*rig)->device().ledger().report().total == 0);
    CHECK((*rig)->device().live_buffers() == 0);
  }
}

// Out of memory ends three modules later.
TEST_CASE("a device smaller than its budget: device_oom with bytes asked and free, and a smaller budget then works") {
  const Limits l = limits();
  const Drawn want = wanted();
  RigOptions options;
  options.sim.memory = l.smallest;
  options.budget = l.full;
  auto rig = Rig::open(options);
  REQUIRE(rig);
  auto drawn = (*rig)->draw(one_step());
  REQUIRE_FALSE(drawn);
  CHECK(drawn.error().code == Code::device_oom);
  CHECK(drawn.error().needed > drawn.error().available);
  CHECK(drawn.error().available > 0);
  (*rig)->set_budget(l.smallest);
  auto smaller = (*rig)->draw(one_step());
  REQUIRE_MESSAGE(smaller, smaller.error().message);
  CHECK(smaller->pixels == want.pixels);
}
