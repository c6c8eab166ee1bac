#include "pipeline/parameters.h"

#include <doctest/doctest.h>

using namespace sluice;

namespace {

Settings settings_of(const Request& request) {
  auto settings = check_request(request, {});
  REQUIRE(settings);
  return std::move(*settings);
}

}  // namespace

TEST_CASE("parameters_text: the customary lines, with the seed of the picture and not of the batch") {
  Request r;
  r.prompt = "a red apple";
  r.width = 64;
  r.height = 128;
  r.steps = 3;
  r.seed = 7;
  r.cfg_scale = 5.5f;
  CHECK(parameters_text(settings_of(r), 9, "emoji", "0123456789", 0xabc) ==
        "a red apple\n"
        "Steps: 3, Sampler: Euler, Schedule type: Discrete, CFG scale: 5.5, Seed: 9, Size: 64x128, Model hash: 0123456789, "
        "Model: emoji, RNG: NV, Variants: 0000000000000abc, Version: sluice");
}

TEST_CASE("parameters_text: what differs from the default is said") {
  Request r;
  r.prompt = "x";
  r.negative_prompt = "blurry";
  r.seed = 1;
  r.clip_skip = 2;
  r.emphasis = "none";
  r.rng = "cpu";
  r.sampler = "dpmpp_2m";
  r.schedule = "karras";
  const std::string text = parameters_text(settings_of(r), 1, "m", "h", 0);
  for (const char* part : {"x\nNegative prompt: blurry\nSteps: 20, ", "Sampler: DPM++ 2M, ", "Schedule type: Karras, ",
                           "Clip skip: 2", "Emphasis: No norm", "RNG: CPU"}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
  for (const char* name : {"euler", "euler_a", "ddim", "dpmpp_2m"}) {
    r.sampler = name;
    CHECK(parameters_text(settings_of(r), 1, "m", "h", 0).find("Sampler: , ") == std::string::npos);
  }
}
