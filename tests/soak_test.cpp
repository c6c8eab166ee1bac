// Many jobs on one engine that alternates between two models and two sizes: nothing grows.
#include <doctest/doctest.h>

#include <fstream>

#include "base/heap.h"
#include "base/pages.h"
#include "sluice/engine.h"
#include "support/rig.h"

using namespace sluice;
using namespace sluice::test;

namespace {

#ifdef SLUICE_SANITIZED
constexpr int kEarly = 8, kLate = 20, kPinned = 16;
#else
constexpr int kEarly = 20, kLate = 200, kPinned = 60;
#endif

/// What is taken at one moment.
struct Taken {
  DeviceUse use;
  Bytes resident_set = 0;
  HeapUse heap;
};

Bytes resident_set() {
  std::ifstream statm("/proc/self/statm");
  Bytes total = 0, resident = 0;
  statm >> total >> resident;
  return resident * page_size();
}

void check_same(const char* what, Bytes early, Bytes late) {
  CAPTURE(what);
  CAPTURE(early);
  CAPTURE(late);
  const Bytes apart = early < late ? late - early : early - late;
  CHECK((apart == 0 || static_cast<double>(apart) < 0.01 * static_cast<double>(early)));
}

/// A budget that holds one request and part of another model's blocks, so that each job has to make room.
Bytes tight_budget(const std::string& device) {
  auto engine = Engine::open(engine_on(device));
  REQUIRE(engine);
  Request r = one_step();
  r.width = 64;
  const auto plan = (*engine)->plan(r);
  REQUIRE(plan);
  return plan->smallest + (plan->full - plan->smallest) * 2 / 3;
}

/// Runs all jobs; gives what was taken after the early and after the last one.
std::pair<Taken, Taken> soak(const std::string& device, Bytes host_budget, int jobs) {
  auto options = engine_on(device, Budget{Budget::Kind::bytes, tight_budget(device)});
  options.tier = Tier::read;
  options.host_budget = host_budget;
  auto engine = Engine::open(options);
  REQUIRE_MESSAGE(engine, engine.error().message);
  auto second = (*engine)->add(ModelOptions{.model = kDemoModel});
  REQUIRE_MESSAGE(second, second.error().message);
  ModelSession* const models[] = {engine->get(), second->get()};
  std::vector<float> first[2][2];
  std::pair<Taken, Taken> taken;
  std::uint64_t evictions = 0;
  for (int job = 1; job <= jobs; ++job) {
    CAPTURE(job);
    const int model = job % 2, size = job / 2 % 2;
    Request r = one_step();
    r.width = size == 0 ? 32 : 64;
    auto made = models[model]->generate(r, {}, {});
    REQUIRE_MESSAGE(made, made.error().message);
    auto& want = first[model][size];
    if (want.empty()) want = made->pictures[0].latent;
    CHECK(made->pictures[0].latent == want);
    CHECK(made->ledger_peak <= options.device_budget.value);
    evictions += made->evictions + made->demotions;
    const auto use = (*engine)->use();
    CHECK(use.host_pageable + use.host_pinned <= host_budget);
    if (job == kEarly) taken.first = {use, resident_set(), heap_in_use()};
    if (job == jobs) taken.second = {use, resident_set(), heap_in_use()};
  }
  CHECK(first[0][0] == first[1][0]);  // one file under two names
  CHECK(first[0][0] != first[0][1]);
  CHECK(evictions > static_cast<std::uint64_t>(jobs));  // they did take each other's place
  return taken;
}

void check_same(const DeviceUse& early, const DeviceUse& late) {
  check_same("zone", early.zone, late.zone);
  check_same("residents", early.residents, late.residents);
  check_same("mapped", early.mapped, late.mapped);
  check_same("backend", early.backend, late.backend);
  check_same("pageable", early.host_pageable, late.host_pageable);
  check_same("pinned", early.host_pinned, late.host_pinned);
}

}  // namespace

TEST_CASE("two models and two sizes in turn: memory after job 20 and after job 200 is the same") {
  const auto [early, late] = soak("cpu:threads=1", 64 * MiB, kLate);
  check_same(early.use, late.use);
  MESSAGE("zone ", late.use.zone, ", residents ", late.use.residents, ", pageable ", late.use.host_pageable, ", heap ",
          early.heap.bytes, " then ", late.heap.bytes, ", resident set ", early.resident_set, " then ", late.resident_set);
#if defined(NDEBUG) && !defined(SLUICE_SANITIZED)
  if (early.heap.known) CHECK(static_cast<double>(late.heap.bytes) < 1.01 * static_cast<double>(early.heap.bytes));
  CHECK(static_cast<double>(late.resident_set) < 1.01 * static_cast<double>(early.resident_set));
#endif
}

// The simulated device keeps a log, which grows; its books do not.
TEST_CASE("the same with memory that can be pinned, less than is wanted") {
  const auto [early, late] = soak("sim:threads=1,link=10GB/s,compute=50GFLOPS,pinned=2MiB", 8 * MiB, kPinned);
  check_same(early.use, late.use);
  CHECK(early.use.host_pinned > 0);
  CHECK(late.use.host_pinned <= 2 * MiB);
  MESSAGE("pinned ", late.use.host_pinned, ", pageable ", late.use.host_pageable);
}
