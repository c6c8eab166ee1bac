// A batch is nothing but its pictures: image i of seed s is the single image of seed s + i, bit for bit.
#include <doctest/doctest.h>

#include "sluice/engine.h"
#include "support/rig.h"

using namespace sluice;
using namespace sluice::test;

namespace {

constexpr int kBatch = 3;

Request batch_of(const char* sampler, int n) {
  Request r = small_request();
  r.sampler = sampler;
  r.batch = n;
  return r;
}

// Full: everything resident. Else a budget at which most blocks of the batch stream.
Result<std::unique_ptr<Rig>> rig_for(bool full) {
  if (full) return Rig::open({});
  auto rig = Rig::open({});
  REQUIRE(rig);
  auto prepared = (*rig)->prepare(batch_of("euler", kBatch));
  REQUIRE(prepared);
  const RequestPlan& plan = (*prepared)->plan();
  RigOptions options;
  options.budget = plan.smallest + (*prepared)->backend() + (plan.full - plan.smallest) / 10;
  return Rig::open(options);
}

}  // namespace

// Image i of a batch is not the image of its own seed: noise drawn for the batch as a whole, or one stream for all images.
TEST_CASE("a batch equals its single pictures for every sampler, resident and at a tight budget") {
  for (const char* sampler : {"euler", "euler_a", "ddim", "dpmpp_2m"}) {
    CAPTURE(sampler);
    std::vector<Drawn> singles;
    {
      auto rig = rig_for(true);
      REQUIRE(rig);
      for (int i = 0; i < kBatch; ++i) {
        Request one = batch_of(sampler, 1);
        one.seed += i;
        auto drawn = (*rig)->draw(one);
        REQUIRE_MESSAGE(drawn, drawn.error().message);
        singles.push_back(std::move(*drawn));
      }
    }
    CHECK(singles[0].pixels != singles[1].pixels);
    for (const bool full : {true, false}) {
      CAPTURE(full);
      auto rig = rig_for(full);
      REQUIRE(rig);
      auto drawn = (*rig)->draw(batch_of(sampler, kBatch));
      REQUIRE_MESSAGE(drawn, drawn.error().message);
      REQUIRE(drawn->pixels.size() == kBatch);
      for (std::size_t i = 0; i < kBatch; ++i) {
        CAPTURE(i);
        CHECK(drawn->latents[i] == singles[i].latents[0]);
        CHECK(drawn->pixels[i] == singles[i].pixels[0]);
      }
    }
  }
}

TEST_CASE("each picture of a batch carries its own seed, drawn or given") {
  auto engine = Engine::open(engine_on("sim:threads=1"));
  REQUIRE(engine);
  for (const std::int64_t seed : {std::int64_t{41}, std::int64_t{-1}}) {
    Request r = batch_of("euler", kBatch);
    r.steps = 1;
    r.seed = seed;
    auto made = (*engine)->generate(r, {}, {});
    REQUIRE_MESSAGE(made, made.error().message);
    REQUIRE(made->pictures.size() == kBatch);
    const std::int64_t base = made->pictures[0].seed;
    if (seed >= 0) CHECK(base == seed);
    for (int i = 0; i < kBatch; ++i) {
      const Picture& p = made->pictures[static_cast<std::size_t>(i)];
      CHECK(p.seed == base + i);
      CHECK(p.parameters.find("Seed: " + std::to_string(base + i) + ",") != std::string::npos);
    }
    // The last one again, alone, from the seed it carries.
    Request again = r;
    again.batch = 1;
    again.seed = base + kBatch - 1;
    auto alone = (*engine)->generate(again, {}, {});
    REQUIRE(alone);
    CHECK(alone->pictures[0].rgb == made->pictures[kBatch - 1].rgb);
  }
}

TEST_CASE("the largest batch at the smallest budget for it") {
#ifdef SLUICE_SANITIZED
  const int n = 8;
#else
  const int n = kLargestBatch;
#endif
  Request many = batch_of("euler", n);
  many.steps = 1;
  many.cfg_scale = 1;
  RigOptions options;
  {
    auto rig = Rig::open({});
    REQUIRE(rig);
    auto prepared = (*rig)->prepare(many);
    REQUIRE_MESSAGE(prepared, prepared.error().message);
    options.budget = (*prepared)->plan().smallest + (*prepared)->backend();
  }
  auto rig = Rig::open(options);
  REQUIRE(rig);
  auto drawn = (*rig)->draw(many);
  REQUIRE_MESSAGE(drawn, drawn.error().message);
  REQUIRE(drawn->pixels.size() == static_cast<std::size_t>(n));
  CHECK((*rig)->device().high_water() <= *options.budget);
  Request last = many;
  last.batch = 1;
  last.seed += n - 1;
  auto alone = (*rig)->draw(last);
  REQUIRE(alone);
  CHECK(alone->pixels[0] == drawn->pixels.back());
}
