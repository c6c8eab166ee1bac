// Requests of every kind, one after another on one engine: each as on a fresh one.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "base/heap.h"
#include "base/pages.h"
#include "sluice/engine.h"
#include "support/rig.h"

using namespace sluice;
using namespace sluice::test;

namespace {

std::string words(int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += "apple ";
  return text;
}

Drawn fresh(const Request& request) {
  auto rig = Rig::open({});
  REQUIRE(rig);
  auto drawn = (*rig)->draw(request);
  REQUIRE_MESSAGE(drawn, drawn.error().message);
  return std::move(*drawn);
}

std::vector<Request> ten_jobs() {
  std::vector<Request> jobs(10, one_step());
  jobs[1].width = 64;
  jobs[2].batch = 2;
  jobs[2].sampler = "euler_a";
  jobs[2].steps = 2;
  jobs[3].prompt = words(90);
  jobs[4].cfg_scale = 1;
  jobs[4].negative_prompt = "blurry";
  jobs[5].cfg_scale = 0;
  jobs[5].height = 96;
  jobs[6].negative_prompt = words(160);
  jobs[6].sampler = "ddim";
  jobs[7].prompt = "a rocket on a blue background";
  jobs[7].sampler = "dpmpp_2m";
  jobs[7].steps = 2;
  jobs[7].clip_skip = 2;
  jobs[8].batch = 3;
  jobs[8].cfg_scale = 1;
  jobs[8].schedule = "karras";
  jobs[8].steps = 2;
  return jobs;  // the last is the first again
}

}  // namespace

// A second generation on one context crashes or differs, or does after a change of size.
TEST_CASE(
    "ten different jobs on one engine at a budget between: each equals the one on a fresh engine, the books end at zero") {
  const auto jobs = ten_jobs();
  Bytes smallest = 0, full = 0;
  for (const auto& job : jobs) {
    auto rig = Rig::open({});
    REQUIRE(rig);
    auto prepared = (*rig)->prepare(job);
    REQUIRE_MESSAGE(prepared, prepared.error().message);
    smallest = std::max(smallest, (*prepared)->plan().smallest + (*prepared)->backend());
    full = std::max(full, (*prepared)->plan().full + (*prepared)->backend());
  }
  REQUIRE(smallest < full);
  for (const HostTier tier : {HostTier::mapped, HostTier::read}) {
    RigOptions options;
    options.tier = tier;
    options.budget = smallest + (full - smallest) / 3;
    auto rig = Rig::open(options);
    REQUIRE(rig);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      CAPTURE(i);
      const Drawn want = fresh(jobs[i]);
      auto drawn = (*rig)->draw(jobs[i]);
      REQUIRE_MESSAGE(drawn, drawn.error().message);
      CHECK(drawn->latents == want.latents);
      CHECK(drawn->pixels == want.pixels);
      CHECK((*rig)->device().high_water() <= *options.budget);
    }
    (*rig)->session().release();
    CHECK((*rig)->device().ledger().report().total == 0);
    CHECK((*rig)->device().live_buffers() == 0);
  }
}

#if defined(NDEBUG) && !defined(SLUICE_SANITIZED)
// Host memory grows from job to job.
TEST_CASE("memory after five jobs and after fifty-five: less than one part in a hundred apart") {
  RigOptions options;
  options.device = "cpu:threads=1";  // the simulated device keeps a log, which grows
  {
    auto rig = Rig::open(options);
    REQUIRE(rig);
    auto prepared = (*rig)->prepare(one_step());
    REQUIRE(prepared);
    options.budget = ((*prepared)->plan().smallest + 2 * (*prepared)->plan().full) / 3 + (*prepared)->backend();
  }
  options.tier = HostTier::read;
  auto rig = Rig::open(options);
  REQUIRE(rig);
  const auto resident_set = [] {
    std::ifstream statm("/proc/self/statm");
    Bytes total = 0, resident = 0;
    statm >> total >> resident;
    return resident * page_size();
  };
  Bytes heap = 0, resident = 0;
  for (int i = 1; i <= 55; ++i) {
    Request r = one_step();
    r.seed = i;
    if (i % 2 == 0) r.prompt = words(90);
    if (i % 3 == 0) r.cfg_scale = 1;
    REQUIRE((*rig)->draw(r));
    if (i == 12) {  // every shape was there twice: its plan, and its place beside the others
      heap = heap_in_use().bytes;
      resident = resident_set();
    }
  }
  REQUIRE(resident > 0);
  const auto now = static_cast<double>(resident_set()), before = static_cast<double>(resident);
  MESSAGE("resident set ", before, " then ", now, ", heap ", heap, " then ", heap_in_use().bytes);
  CHECK(now < 1.01 * before);
  if (heap_in_use().known) CHECK(static_cast<double>(heap_in_use().bytes) < 1.01 * static_cast<double>(heap));
}
#endif

// Guidance of 1: the prompt is ignored, or the work is done twice.
TEST_CASE("guidance 1: one lane, one pass a step, and no trace of the negative prompt") {
  Request r = small_request();
  r.cfg_scale = 1;
  std::uint64_t computes[2] = {};
  std::optional<Drawn> want;
  for (const bool negative : {false, true}) {
    auto rig = Rig::open({});
    REQUIRE(rig);
    if (negative) r.negative_prompt = words(90);
    auto prepared = (*rig)->prepare(r);
    REQUIRE(prepared);
    CHECK((*prepared)->specs[0].lanes.size() == 1);
    CHECK((*prepared)->specs[1].lanes.size() == 1);
    const std::size_t blocks =
        (*prepared)->stages[0].blocks() + 2 * (*prepared)->stages[1].blocks() + (*prepared)->stages[2].blocks();
    int steps = 0;
    Watch watch;
    watch.outputs = [&](int, int, std::span<const float> cond, std::span<const float> uncond) {
      ++steps;
      CHECK_FALSE(cond.empty());
      CHECK(uncond.empty());
    };
    auto drawn = (*rig)->draw(r, {}, watch);
    REQUIRE(drawn);
    CHECK(steps == 2);
    computes[negative] = (*rig)->device().counters().computes;
    CHECK(computes[negative] == blocks);
    if (!want) {
      want = std::move(*drawn);
    } else {
      CHECK(drawn->pixels == want->pixels);
    }
  }
}

TEST_CASE("guidance 0: the picture of the negative prompt alone, whatever the prompt") {
  Request r = small_request();
  r.cfg_scale = 0;
  r.negative_prompt = "a blue rocket";
  const Drawn zero = fresh(r);
  r.prompt = words(90);
  CHECK(fresh(r).pixels == zero.pixels);
  Request alone = small_request();
  alone.cfg_scale = 1;
  alone.prompt = "a blue rocket";
  CHECK(fresh(alone).pixels == zero.pixels);
}

// One Euler step from σ to 0 gives x − σ(u + s(c − u)), so latents are linear in the scale s.
TEST_CASE("guidance between: the linear formula") {
  Request r = one_step();
  const auto latent = [&](float scale) {
    r.cfg_scale = scale;
    return fresh(r).latents[0];
  };
  const auto l0 = latent(0), l1 = latent(1);
  double most = 0;
  for (std::size_t i = 0; i < l0.size(); ++i) most = std::max({most, std::fabs(double{l0[i]}), std::fabs(double{l1[i]})});
  // Start noise reaches 5 σ, σ is below 15: each latent carries a few roundings of numbers of that size, and the right side
  // stretches those of l0 and l1 by 1 + 2 s.
  const double rounding = std::max(most, 75.0) * std::numeric_limits<float>::epsilon();
  for (const float s : {0.25f, 0.5f, 2.0f, 7.5f}) {
    CAPTURE(s);
    const auto l = latent(s);
    double worst = 0;
    for (std::size_t i = 0; i < l.size(); ++i)
      worst = std::max(worst, std::fabs(double{l[i]} - (double{l0[i]} + double{s} * (double{l1[i]} - double{l0[i]}))));
    CHECK(worst <= rounding * (2 + 2 * s) * (1 + s));
    CHECK(l != l0);
    CHECK(l != l1);
  }
}

// Picture sizes that are no multiple end in an assertion deep in the graph.
TEST_CASE("sizes 1 to 129 through the U-Net and the decoder: exactly what was asked, or a refusal with the nearest sizes") {
  auto rig = Rig::open({});
  REQUIRE(rig);
  const int m = (*rig)->model().rule.multiple();
  int drawn_sizes = 0;
  for (int size = 1; size <= 129; ++size) {
    CAPTURE(size);
    Request r = one_step();
    r.cfg_scale = 1;
    r.width = size;
    r.height = m;
    const bool valid = size % m == 0;
    for (int turn = 0; turn < 2; ++turn) {
      auto drawn = (*rig)->draw(r);
      REQUIRE(drawn.has_value() == valid);
      if (valid) {
        CHECK(drawn->pixels[0].size() == static_cast<std::size_t>(3 * size * m));
        ++drawn_sizes;
      } else {
        CHECK(drawn.error().code == Code::invalid_argument);
        if (size > m) CHECK(drawn.error().message.find(std::to_string(size / m * m)) != std::string::npos);
      }
      std::swap(r.width, r.height);
    }
  }
  CHECK(drawn_sizes == 2 * (129 / m));
}

TEST_CASE("sizes no picture can have are refused, and the engine goes on") {
  auto engine = Engine::open(engine_on("sim:threads=1"));
  REQUIRE(engine);
  for (const int bad : {-32, 1, 1'000'000}) {
    Request r = one_step();
    r.width = bad;
    auto made = (*engine)->generate(r, {}, {});
    REQUIRE_FALSE(made);
    CHECK(made.error().code == Code::invalid_argument);
  }
  Request r = one_step();
  r.width = r.height = 0;
  auto made = (*engine)->generate(r, {}, {});
  REQUIRE(made);
  CHECK(made->pictures[0].width == 64);
  CHECK(made->pictures[0].rgb.size() == std::size_t{3 * 64 * 64});
}

// Bytes that are no text crash the tokenizer; what lies beyond the first 75 tokens has no effect.
TEST_CASE("strange prompts: each gives a picture") {
  auto rig = Rig::open({});
  REQUIRE(rig);
  std::string long_one;
  while (long_one.size() < 10'000) long_one += "a red apple on a table, ";
  const std::string brackets = std::string(500, '(') + "[[[" + std::string(300, ']') + ":1.5)";
  const std::string invalid = "\xff\xfe apple \xc3\x28 \xe2\x82 \xf0\x9f";
  for (const std::string& prompt :
       {std::string(), long_one, brackets, invalid, std::string("\0\0", 2), std::string(" \n\t ")}) {
    CAPTURE(prompt.substr(0, 20));
    Request r = one_step();
    r.cfg_scale = 1;
    r.prompt = prompt;
    auto drawn = (*rig)->draw(r);
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    CHECK(drawn->pixels[0].size() == std::size_t{3 * 32 * 32});
    r.cfg_scale = 5;
    std::swap(r.prompt, r.negative_prompt);
    if (prompt.size() < 10'000) CHECK((*rig)->draw(r));
  }
  Request r = one_step();
  r.prompt = words(79) + "blue";
  const Drawn blue = fresh(r);
  r.prompt = words(79) + "green";
  CHECK(fresh(r).pixels != blue.pixels);
}

// A clamp that sits in the branch that logs works only when logging.
TEST_CASE("plans are the same at every log level") {
  const auto plan_at = [](LogSink log) {
    auto options = engine_on("sim:threads=1,memory=24MiB");
    options.log = std::move(log);
    auto engine = Engine::open(std::move(options));
    REQUIRE(engine);
    auto plan = (*engine)->plan(one_step());
    REQUIRE_MESSAGE(plan, plan.error().message);
    std::string text = std::to_string(plan->budget) + " " + std::to_string(plan->planned) + " " +
                       std::to_string(plan->smallest) + " " + std::to_string(plan->full);
    for (const auto& stage : plan->stages) {
      text += "\n" + stage.name + std::to_string(stage.transient) + " " + std::to_string(stage.bytes_per_sweep);
      for (const auto& block : stage.blocks)
        text += "\n" + block.name + " " + block.place + " " + std::to_string(block.weights);
    }
    return text;
  };
  const std::string silent = plan_at({});
  for (const LogLevel level : {LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error})
    CHECK(plan_at(LogSink([](LogLevel, std::string_view) {}, level)) == silent);
}

TEST_CASE("a thousand steps are planned like two") {
  auto rig = Rig::open({});
  REQUIRE(rig);
  Request r = small_request();
  auto two = (*rig)->prepare(r);
  REQUIRE(two);
  const Bytes smallest = (*two)->plan().smallest;
  r.steps = 1000;
  auto many = (*rig)->prepare(r);
  REQUIRE(many);
  CHECK((*many)->plan().smallest == smallest);
  CHECK((*many)->stages[1].cost().sweeps == 1000);
}
