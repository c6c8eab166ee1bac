// Several models on one engine: what they share, what each keeps, what goes when one goes.
#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "sluice/engine.h"
#include "support/rig.h"

using namespace sluice;
using namespace sluice::test;

namespace {

ModelOptions demo() {
  ModelOptions options;
  options.model = kDemoModel;
  return options;
}

Bytes taken(const Engine& engine) {
  const auto use = engine.use();
  return use.zone + use.residents + use.mapped;
}

std::vector<float> latent_of(ModelSession& session, const Request& request = one_step()) {
  auto made = session.generate(request, {}, {});
  REQUIRE_MESSAGE(made, made.error().message);
  return made->pictures[0].latent;
}

std::vector<float> wanted() {
  auto engine = Engine::open(engine_on("sim:threads=1"));
  REQUIRE(engine);
  return latent_of(**engine);
}

}  // namespace

TEST_CASE("an engine without a model says so, and takes one") {
  auto options = engine_on("sim:threads=1");
  options.model.clear();
  auto engine = Engine::open(options);
  REQUIRE(engine);
  CHECK((*engine)->plan(one_step()).error().code == Code::invalid_argument);
  CHECK((*engine)->generate(one_step(), {}, {}).error().code == Code::invalid_argument);
  auto session = (*engine)->add(demo());
  REQUIRE_MESSAGE(session, session.error().message);
  CHECK(latent_of(**session) == wanted());
  auto none = demo();
  none.model = "no such file";
  CHECK_FALSE((*engine)->add(none));
  none = demo();
  none.policy = "none such";
  CHECK_FALSE((*engine)->add(none));
}

TEST_CASE("two models share a device: with room for both nothing moves again, without it pictures stay the same") {
  const auto want = wanted();
  Bytes smallest = 0, full = 0;
  {
    auto engine = Engine::open(engine_on("sim:threads=1"));
    REQUIRE(engine);
    auto plan = (*engine)->plan(one_step());
    REQUIRE(plan);
    smallest = plan->smallest;
    full = plan->full;
  }
  for (const Bytes budget : {smallest, (smallest + full) / 2, full, full + full / 2, 2 * full}) {
    for (const Tier tier : {Tier::mapped, Tier::read, Tier::disk}) {
      CAPTURE(budget);
      CAPTURE(static_cast<int>(tier));
      auto options = engine_on("sim:threads=1", {Budget::Kind::bytes, budget});
      options.tier = tier;
      auto engine = Engine::open(options);
      REQUIRE(engine);
      auto second = (*engine)->add(demo());
      REQUIRE_MESSAGE(second, second.error().message);
      for (int i = 0; i < 3; ++i) {
        for (ModelSession* session : {static_cast<ModelSession*>(engine->get()), second->get()}) {
          auto made = session->generate(one_step(), {}, {});
          REQUIRE_MESSAGE(made, made.error().message);
          CHECK(made->pictures[0].latent == want);
          CHECK(made->ledger_peak <= budget);
          CHECK(made->plans_built == (i == 0));
          Bytes copied = 0;
          for (const auto& run : made->runs) copied += run.copied;
          if (budget == 2 * full && i > 0) {
            CHECK(copied == 0);
            CHECK(made->bytes_read == 0);
            CHECK(made->given_up == 0);
          }
          if (budget == full && i > 0) CHECK(made->evictions + made->demotions > 0);
          if (budget == full && tier == Tier::disk) CHECK(made->evictions == 0);
          if (budget == full && tier != Tier::disk) CHECK(made->demotions == 0);
        }
      }
      // What the second one used goes with it.
      const Bytes both = taken(**engine);
      second->reset();
      CHECK(taken(**engine) <= both);
      CHECK(latent_of(**engine) == want);
      CHECK(taken(**engine) + (*engine)->use().backend <= full);
      (*engine)->unload(true);
      CHECK(taken(**engine) == 0);
      CHECK(latent_of(**engine) == want);
    }
  }
}

TEST_CASE("the last session takes every byte along, also after a failure") {
  for (const char* device : {"sim:threads=1", "sim:threads=1,fail-compute=9", "sim:threads=1,fail-copy=5"}) {
    CAPTURE(device);
    auto options = engine_on(device);
    options.model.clear();
    options.tier = Tier::read;
    auto engine = Engine::open(options);
    REQUIRE(engine);
    auto session = (*engine)->add(demo());
    REQUIRE(session);
    const bool failed = !(*session)->generate(one_step(), {}, {});
    CHECK(failed == (std::string(device).find("fail") != std::string::npos));
    if (failed) CHECK(taken(**engine) == 0);
    session->reset();
    CHECK(taken(**engine) == 0);
    const auto use = (*engine)->use();
    CHECK(use.host_pageable + use.host_pinned <= MiB);  // the conversion buffer and nothing else
  }
}

TEST_CASE("a session may outlive its engine") {
  auto engine = Engine::open(engine_on("sim:threads=1"));
  REQUIRE(engine);
  auto session = (*engine)->add(demo());
  REQUIRE(session);
  engine->reset();
  CHECK(latent_of(**session) == wanted());
}

TEST_CASE("the same prompt again: the text encoder does not run and is not loaded") {
  const auto want = wanted();
  auto options = engine_on("sim:threads=1");
  options.tier = Tier::disk;
  auto engine = Engine::open(options);
  REQUIRE(engine);
  CHECK(latent_of(**engine) == want);
  (*engine)->unload(false);
  auto again = (*engine)->generate(one_step(), {}, {});
  REQUIRE(again);
  CHECK(again->pictures[0].latent == want);
  CHECK(again->runs[0].name == "encode");
  CHECK(again->runs[0].sweeps == 0);
  CHECK(again->runs[0].copied == 0);
  // Anything that changes the embedding is another one.
  for (const int change : {0, 1, 2, 3}) {
    Request r = one_step();
    if (change == 0) r.prompt += " ";
    if (change == 1) r.negative_prompt = "blue";
    if (change == 2) r.clip_skip = 2;
    if (change == 3) r.emphasis = "none";
    auto other = (*engine)->generate(r, {}, {});
    REQUIRE(other);
    CHECK(other->runs[0].sweeps == 1);
    // And equals that of a fresh engine.
    auto fresh = Engine::open(options);
    REQUIRE(fresh);
    CHECK(other->pictures[0].latent == latent_of(**fresh, r));
  }
}

TEST_CASE("a budget that changes between two steps: followed there, with the same picture") {
  Request request = small_request();
  request.steps = 6;
  auto reference = Engine::open(engine_on("sim:threads=1"));
  REQUIRE(reference);
  const auto want = latent_of(**reference, request);
  auto plan = (*reference)->plan(request);
  REQUIRE(plan);
  const Bytes low = plan->smallest + (plan->full - plan->smallest) / 4;
  auto engine = Engine::open(engine_on("sim:threads=1", {Budget::Kind::bytes, plan->full}));
  REQUIRE(engine);
  Bytes least = UINT64_MAX;
  const auto watch = [&](const Progress& p) {
    if (p.stage != "denoise") return;
    if (p.done == 2) CHECK((*engine)->set_budget({Budget::Kind::bytes, low}));
    if (p.done == 4) CHECK((*engine)->set_budget({Budget::Kind::bytes, plan->full}));
    if (p.done == 3) least = std::min(least, taken(**engine) + (*engine)->use().backend);
  };
  auto made = (*engine)->generate(request, watch, {});
  REQUIRE_MESSAGE(made, made.error().message);
  CHECK(made->pictures[0].latent == want);
  CHECK(made->plans_built <= 3);
  CHECK(made->runs[1].sweeps == 6);
  CHECK(least <= low);
}

TEST_CASE("idle: the device is given back first, then host memory, and the next request is the same") {
  const auto want = wanted();
  auto options = engine_on("sim:threads=1");
  options.tier = Tier::read;
  options.idle_unload_s = 0.3;
  auto engine = Engine::open(options);
  REQUIRE(engine);
  for (int round = 0; round < 2; ++round) {
    CHECK(latent_of(**engine) == want);
    const auto waits_for = [&](const auto& done) {
      for (int i = 0; i < 600 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return done();
    };
    REQUIRE(waits_for([&] { return taken(**engine) == 0; }));
    REQUIRE(waits_for([&] { return (*engine)->use().host_pageable <= MiB; }));
  }
}

TEST_CASE("eager: what a request needs is in host memory before it") {
  auto options = engine_on("sim:threads=1");
  options.tier = Tier::read;
  options.load = Load::eager;
  auto engine = Engine::open(options);
  REQUIRE(engine);
  CHECK((*engine)->use().host_pageable > 10 * MiB);
  auto made = (*engine)->generate(one_step(), {}, {});
  REQUIRE(made);
  CHECK(made->bytes_read == 0);
  CHECK(made->pictures[0].latent == wanted());
}

TEST_CASE("requests of several sessions from several threads take turns") {
  const auto want = wanted();
  auto engine = Engine::open(engine_on("sim:threads=1"));
  REQUIRE(engine);
  auto second = (*engine)->add(demo());
  REQUIRE(second);
  std::vector<std::vector<float>> got(2);
  const auto draw = [&](std::size_t i, ModelSession* session) {
    for (int n = 0; n < 2; ++n)
      if (auto made = session->generate(one_step(), {}, {})) got[i] = made->pictures[0].latent;
  };
  std::thread other([&] { draw(1, second->get()); });
  draw(0, engine->get());
  other.join();
  CHECK(got[0] == want);
  CHECK(got[1] == want);
}

TEST_CASE("sessions come and go while another draws") {
  const auto want = wanted();
  auto engine = Engine::open(engine_on("sim:threads=1"));
  REQUIRE(engine);
  std::thread other([&] {
    for (int i = 0; i < 4; ++i) {
      auto session = (*engine)->add(demo());
      if (!session) continue;
      if (i % 2 == 0) (void)(*session)->generate(one_step(), {}, {});
      (void)(*session)->plan(small_request());
    }
  });
  for (int i = 0; i < 3; ++i) CHECK(latent_of(**engine) == want);
  other.join();
  const Bytes alone = taken(**engine);
  CHECK(latent_of(**engine) == want);
  CHECK(taken(**engine) == alone);
  (*engine)->unload(true);
  CHECK(taken(**engine) == 0);
}
