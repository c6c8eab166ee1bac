// Several devices: the same bits as one, each within its own budget, each streaming its own part.
#include <doctest/doctest.h>

#include <cstring>

#include "support/rig.h"

using namespace sluice;
using namespace sluice::test;

namespace {

#ifdef SLUICE_SANITIZED
constexpr int kBudgets = 4;
#else
constexpr int kBudgets = 16;
#endif
constexpr std::size_t kDenoise = 1;

SimOptions sim(const char* label) {
  SimOptions options;
  options.label = label;
  options.threads = 1;
  return options;
}

RigOptions several(std::size_t devices, std::optional<Bytes> budget = std::nullopt) {
  static const char* const kLabels[] = {"a", "b", "c"};
  RigOptions options;
  options.sim = sim(kLabels[0]);
  options.budget = budget;
  for (std::size_t d = 1; d < devices; ++d) options.more.emplace_back(sim(kLabels[d]), budget);
  return options;
}

Drawn drawn_on_one() {
  auto rig = Rig::open({});
  REQUIRE(rig);
  auto drawn = (*rig)->draw(small_request());
  REQUIRE_MESSAGE(drawn, drawn.error().message);
  return *std::move(drawn);
}

void check_same(const Drawn& got, const Drawn& want) {
  CHECK(got.latents == want.latents);
  CHECK(got.pixels == want.pixels);
}

/// The smallest budget that works on every device, and the largest that one of them can use.
std::pair<Bytes, Bytes> limits_of(const RigOptions& options) {
  auto rig = Rig::open(options);
  REQUIRE(rig);
  auto prepared = (*rig)->prepare(small_request());
  REQUIRE(prepared);
  Bytes smallest = 0, full = 0;
  for (const auto& part : (*prepared)->parts) {
    smallest = std::max(smallest, part.plan.smallest + part.backend);
    full = std::max(full, part.plan.full + part.backend);
  }
  return {smallest, full};
}

/// Bytes of the stage's weights on each device.
std::vector<Bytes> shares_of(const Stage& stage, std::size_t devices) {
  std::vector<Bytes> bytes(devices, 0);
  for (std::size_t b = 0; b < stage.blocks(); ++b) bytes[stage.device_of(b)] += stage.block_cost(b).weights;
  return bytes;
}

}  // namespace

TEST_CASE("two and three equal devices: an even share of each, the bits of one, skips cross in the state") {
  const Drawn want = drawn_on_one();
  for (const std::size_t devices : {2U, 3U}) {
    CAPTURE(devices);
    auto rig = Rig::open(several(devices));
    REQUIRE(rig);
    auto prepared = (*rig)->prepare(small_request());
    REQUIRE_MESSAGE(prepared, prepared.error().message);
    const Stage& denoise = (*prepared)->stages[kDenoise];
    const auto shares = shares_of(denoise, devices);
    Bytes whole = 0;
    for (const Bytes share : shares) whole += share;
    for (const Bytes share : shares) {
      CHECK(static_cast<double>(share) >= 0.6 / static_cast<double>(devices) * static_cast<double>(whole));
      CHECK(static_cast<double>(share) <= 1.4 / static_cast<double>(devices) * static_cast<double>(whole));
    }
    // What the down path keeps for the up path crosses: more than the one value that leads from block to block.
    std::size_t crossings = 0;
    for (std::size_t b = 0; b < denoise.blocks(); ++b) crossings += denoise.arrivals(b).size();
    CHECK(crossings > devices);
    auto drawn = (*rig)->draw(small_request());
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    check_same(*drawn, want);
    for (std::size_t d = 0; d < devices; ++d) CHECK((*rig)->device(d).counters().computes > 0);
  }
}

TEST_CASE("every budget on two devices, even and uneven: the same bits, never above either budget") {
  const Drawn want = drawn_on_one();
  const auto [smallest, full] = limits_of(several(2));
  for (int i = 0; i < kBudgets; ++i) {
    const Bytes budget = smallest + (full - smallest) * static_cast<Bytes>(i) / static_cast<Bytes>(kBudgets - 1);
    for (const bool uneven : {false, true}) {
      CAPTURE(budget);
      CAPTURE(uneven);
      RigOptions options = several(2, budget);
      if (uneven) options.more[0].second = budget / 2 + smallest;
      options.tier = i % 2 == 0 ? HostTier::mapped : HostTier::disk;
      auto rig = Rig::open(options);
      REQUIRE(rig);
      auto drawn = (*rig)->draw(small_request());
      REQUIRE_MESSAGE(drawn, drawn.error().message);
      check_same(*drawn, want);
      CHECK((*rig)->device(0).high_water() <= budget);
      CHECK((*rig)->device(1).high_water() <= *options.more[0].second);
    }
  }
}

TEST_CASE("a refusal names a device and a budget that works; a byte less does not") {
  for (const auto& [one, other] : {std::pair<Bytes, Bytes>{500 * KiB, 1 * MiB}, {2 * MiB, 1900 * KiB}, {1, 1}}) {
    CAPTURE(one);
    RigOptions options = several(2, one);
    options.more[0].second = other;
    std::optional<Error> refusal;
    std::size_t device = 0;
    for (int attempt = 0; attempt < 2; ++attempt) {
      auto rig = Rig::open(options);
      REQUIRE(rig);
      auto prepared = (*rig)->prepare(small_request());
      if (attempt == 1) {
        REQUIRE_MESSAGE(prepared, prepared.error().message);
        REQUIRE((*rig)->draw(small_request()));
        break;
      }
      REQUIRE_FALSE(prepared);
      refusal = prepared.error();
      device = (*rig)->session().refused_on();
      REQUIRE(refusal->code == Code::over_budget);
      CHECK(refusal->available == (device == 0 ? one : other));
      CHECK((*rig)->device(0).counters().allocs + (*rig)->device(1).counters().allocs == 0);
      (device == 0 ? options.budget : options.more[0].second) = refusal->needed - 1;
      auto less = Rig::open(options);
      REQUIRE(less);
      CHECK_FALSE((*less)->prepare(small_request()));
      (device == 0 ? options.budget : options.more[0].second) = refusal->needed;
    }
  }
}

TEST_CASE("an operator that a device lacks puts its blocks on the other, and nothing else") {
  const Drawn want = drawn_on_one();
  for (const char* lacked : {"NORM", "SOFT_MAX", "UPSCALE"}) {
    CAPTURE(lacked);
    RigOptions options = several(2);
    options.sim.lacks.insert(lacked);
    auto rig = Rig::open(options);
    REQUIRE(rig);
    auto prepared = (*rig)->prepare(small_request());
    REQUIRE_MESSAGE(prepared, prepared.error().message);
    std::size_t elsewhere = 0;
    for (const Stage& stage : (*prepared)->stages)
      for (std::uint32_t b = 0; b < stage.blocks(); ++b) {
        const auto why = (*rig)->session().why_elsewhere({stage.spec().component, b});
        if (why.empty()) continue;
        ++elsewhere;
        CHECK(stage.device_of(b) == 1);
        CHECK(why.find("sim:a cannot run") == 0);
      }
    CHECK(elsewhere > 0);
    auto drawn = (*rig)->draw(small_request());
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    check_same(*drawn, want);
  }
  RigOptions neither = several(2);
  neither.sim.lacks.insert("NORM");
  neither.more[0].first.lacks.insert("NORM");
  auto rig = Rig::open(neither);
  REQUIRE(rig);
  const auto refused = (*rig)->prepare(small_request());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::unsupported);
  CHECK(refused.error().message.find("sim:a cannot run") != std::string::npos);
  CHECK(refused.error().message.find("sim:b cannot run") != std::string::npos);
}

TEST_CASE("each link copies its own part: two devices that stream take no longer than the slower of compute and either link") {
  RigOptions options = several(2);
  for (SimOptions* s : {&options.sim, &options.more[0].first}) {
    s->link_bytes_per_s = 400e6;
    s->flops_per_s = 20e9;
  }
  const auto [smallest, full] = limits_of(options);
  Request request = small_request();
  request.steps = 4;
  const auto step_of = [&](std::size_t devices, Bytes budget) {
    RigOptions on = options;
    on.budget = budget;
    if (devices == 1)
      on.more.clear();
    else
      on.more[0].second = budget;
    auto rig = Rig::open(on);
    REQUIRE(rig);
    auto drawn = (*rig)->draw(request);
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    auto prepared = (*rig)->prepare(request);
    REQUIRE(prepared);
    double roofline = 0;
    const Stage& stage = (*prepared)->stages[kDenoise];
    Bytes copied = 0;
    for (std::size_t i = 0; i < stage.sections().size(); ++i) {
      roofline = std::max(roofline, (*prepared)->placement(kDenoise, i).plan.roofline_s);
      copied += (*prepared)->placement(kDenoise, i).plan.bytes_per_sweep;
    }
    CHECK(drawn->runs[kDenoise].copied_steady == copied);
    CHECK(drawn->runs[kDenoise].step_s >= 0.999 * roofline);
    MESSAGE(devices, " devices, budget ", budget, ": ", drawn->runs[kDenoise].step_s, " s a step, roofline ", roofline,
            ", copied ", copied);
    return drawn->runs[kDenoise].step_s;
  };
  // Twice the memory and twice the links.
  const Bytes budget = smallest + (full - smallest) / 4;
  CHECK(step_of(2, budget) < 0.8 * step_of(1, budget));
}

TEST_CASE("a budget that changes deals the blocks out anew between requests, and the bits stay") {
  const Drawn want = drawn_on_one();
  auto rig = Rig::open(several(2, 64 * MiB));
  REQUIRE(rig);
  const auto share_of_first = [&] {
    auto prepared = (*rig)->prepare(small_request());
    REQUIRE_MESSAGE(prepared, prepared.error().message);
    return shares_of((*prepared)->stages[kDenoise], 2)[0];
  };
  const Bytes half = share_of_first();
  check_same((*rig)->draw(small_request()).value(), want);
  (*rig)->memory(0).set_budget(4 * MiB);
  CHECK(share_of_first() < half);
  check_same((*rig)->draw(small_request()).value(), want);
  CHECK((*rig)->memory(0).taken() <= 4 * MiB);
  // A second request finds everything where it is.
  const auto copied = (*rig)->device(0).counters().weight_bytes_set + (*rig)->device(1).counters().weight_bytes_set;
  (*rig)->memory(0).set_budget(64 * MiB);
  check_same((*rig)->draw(small_request()).value(), want);
  const auto again = (*rig)->device(0).counters().weight_bytes_set + (*rig)->device(1).counters().weight_bytes_set;
  CHECK(again > copied);
  check_same((*rig)->draw(small_request()).value(), want);
  CHECK((*rig)->device(0).counters().weight_bytes_set + (*rig)->device(1).counters().weight_bytes_set == again);
  (*rig)->session().release();
  for (std::size_t d = 0; d < 2; ++d) {
    CHECK((*rig)->memory(d).occupants().empty());
    CHECK((*rig)->device(d).live_buffers() == 0);
  }
}

TEST_CASE("a failed copy on either device ends the request, and the next one works") {
  const Drawn want = drawn_on_one();
  for (const std::size_t device : {0U, 1U})
    for (const std::uint64_t n : {1U, 9U, 40U}) {
      CAPTURE(device);
      CAPTURE(n);
      RigOptions options = several(2, 6 * MiB);
      (device == 0 ? options.sim : options.more[0].first).fail_copy = n;
      auto rig = Rig::open(options);
      REQUIRE(rig);
      const auto failed = (*rig)->draw(small_request());
      REQUIRE_FALSE(failed);
      CHECK(failed.error().code == Code::device_failed);
      auto drawn = (*rig)->draw(small_request());
      REQUIRE_MESSAGE(drawn, drawn.error().message);
      check_same(*drawn, want);
    }
}

TEST_CASE("the engine: lists, budgets and places by name") {
  EngineOptions options;
  options.model = kDemoModel;
  options.device = "sim:a,threads=1,sim:b,threads=1";
  options.device_budgets["sim:a"] = {Budget::Kind::bytes, 5 * MiB};
  options.device_budgets["sim:b"] = {Budget::Kind::bytes, 9 * MiB};
  auto engine = Engine::open(options);
  REQUIRE_MESSAGE(engine, engine.error().message);
  auto made = (*engine)->generate(small_request(), {}, {});
  REQUIRE_MESSAGE(made, made.error().message);
  REQUIRE(made->peaks.size() == 2);
  CHECK(made->peaks[0].bytes <= 5 * MiB);
  CHECK(made->peaks[1].bytes <= 9 * MiB);
  CHECK(made->pictures[0].latent == drawn_on_one().latents[0]);
  const auto uses = (*engine)->uses();
  REQUIRE(uses.size() == 2);
  CHECK(uses[0].device == "sim:a");
  CHECK(uses[1].residents > 0);
  CHECK((*engine)->set_budget({Budget::Kind::bytes, 7 * MiB}, "sim:b"));
  CHECK_FALSE((*engine)->set_budget({Budget::Kind::bytes, 7 * MiB}, "sim:c"));
  made = (*engine)->generate(small_request(), {}, {});
  REQUIRE(made);
  CHECK(made->peaks[1].limit == 7 * MiB);

  options.place = {{"text", "sim:b"}, {"denoiser", "sim:a"}, {"vae", "sim:a+sim:b"}};
  engine = Engine::open(options);
  REQUIRE(engine);
  const auto plan = (*engine)->plan(small_request());
  REQUIRE_MESSAGE(plan, plan.error().message);
  for (const auto& block : plan->stages[0].blocks) CHECK(block.device == "sim:b");
  for (const auto& block : plan->stages[1].blocks) CHECK(block.device == "sim:a");

  const auto refused = [&](const EngineOptions& wrong, const char* word) {
    const auto opened = Engine::open(wrong);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().code == Code::invalid_argument);
    CHECK_MESSAGE(opened.error().message.find(word) != std::string::npos, opened.error().message);
  };
  EngineOptions wrong = options;
  wrong.place = {{"unet", "sim:a"}};
  refused(wrong, "text, denoiser and vae");
  wrong.place = {{"text", "sim:c"}};
  refused(wrong, "sim:a, sim:b");
  wrong = options;
  wrong.device_budgets["cpu"] = {};
  refused(wrong, "sim:a, sim:b");
  wrong = options;
  wrong.device = "sim:a,sim:a";
  refused(wrong, "named twice");
  wrong = options;
  wrong.device_budgets.clear();
  wrong.device_budget = {Budget::Kind::bytes, MiB};
  refused(wrong, "say whose it is, as sim:a=6GiB");
  wrong = options;
  wrong.threads = 2;
  refused(wrong, "--threads");
}
