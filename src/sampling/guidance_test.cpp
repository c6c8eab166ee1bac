#include "sampling/guidance.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace sluice {

TEST_CASE("guidance_passes: the rule for 1, 0 and what lies between; nonsense refused") {
  const auto check = [](double scale, bool cond, bool uncond) {
    CAPTURE(scale);
    const auto passes = guidance_passes(scale);
    REQUIRE(passes);
    CHECK(passes->cond == cond);
    CHECK(passes->uncond == uncond);
    CHECK(passes->count() == cond + uncond);
  };
  check(1, true, false);
  check(0, false, true);
  check(-0.0, false, true);
  for (const double scale : {1e-9, 0.5, std::nextafter(1.0, 0.0), std::nextafter(1.0, 2.0), 7.0, 1e6}) check(scale, true, true);
  using limits = std::numeric_limits<double>;
  for (const double scale : {limits::quiet_NaN(), limits::infinity(), -limits::infinity(), -1e-300, -1.0}) {
    CAPTURE(scale);
    CHECK(guidance_passes(scale).error().code == Code::invalid_argument);
  }
}

TEST_CASE("apply_guidance: the linear formula, exact at 0 and 1, also in place") {
  const std::vector<float> cond{1, -2, 0.5f, 1e-30f}, uncond{0.5f, 4, 0.5f, 1e30f};
  std::vector<float> out(4);
  apply_guidance(cond, uncond, 1, out);
  CHECK(out == cond);
  apply_guidance(cond, uncond, 0, out);
  CHECK(out == uncond);
  apply_guidance(cond, uncond, 0.5, out);
  CHECK(out == std::vector<float>{0.75f, 1, 0.5f, 0.5e30f});
  apply_guidance(cond, uncond, 3, out);
  CHECK(out == std::vector<float>{2, -14, 0.5f, -2e30f});
  for (const double scale : {0.0, 1.0, 7.5}) {
    apply_guidance(cond, uncond, scale, out);
    auto a = cond, b = uncond;
    apply_guidance(a, uncond, scale, a);
    apply_guidance(cond, b, scale, b);
    CHECK(a == out);
    CHECK(b == out);
  }
}

}  // namespace sluice
