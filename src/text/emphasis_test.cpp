#include "text/emphasis.h"

#include <doctest/doctest.h>

#include <numeric>
#include <random>
#include <vector>

namespace sluice {
namespace {

double mean(const std::vector<float>& v) { return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size()); }

}  // namespace

TEST_CASE("apply_emphasis: states times weights, with or without the mean restored") {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0.2f);
  const std::size_t hidden = 8, tokens = 154;
  std::vector<float> z(hidden * tokens), w(tokens, 1.0f);
  for (auto& v : z) v = normal(rng);
  w[3] = 1.3f, w[4] = 0.5f, w[100] = 2.0f;

  std::vector<float> plain = z;
  REQUIRE(apply_emphasis(plain, w, Emphasis::none));
  for (std::size_t i = 0; i < z.size(); ++i) CHECK(plain[i] == z[i] * w[i / hidden]);

  std::vector<float> restored = z;
  REQUIRE(apply_emphasis(restored, w, Emphasis::mean));
  CHECK(mean(restored) == doctest::Approx(mean(z)).epsilon(1e-6));
  const double factor = mean(z) / mean(plain);
  for (std::size_t i = 0; i < z.size(); ++i) CHECK(restored[i] == doctest::Approx(factor * plain[i]).epsilon(1e-6));
}

TEST_CASE("apply_emphasis: weights of 1 change no bit; a mean of zero is not restored; sizes must divide") {
  std::vector<float> z{0.1f, 0.7f, -3.0f, 1e-9f};
  const auto same = z;
  REQUIRE(apply_emphasis(z, std::vector<float>{1, 1}, Emphasis::mean));
  CHECK(z == same);
  REQUIRE(apply_emphasis(z, std::vector<float>{0, 0}, Emphasis::mean));
  CHECK(z == std::vector<float>{0, 0, 0, 0});
  CHECK(apply_emphasis(z, std::vector<float>{1, 2, 3}, Emphasis::mean).error().code == Code::invalid_argument);
  CHECK(apply_emphasis(z, {}, Emphasis::none).error().code == Code::invalid_argument);
}

TEST_CASE("emphasis: names parse back; others are refused with the list") {
  for (const auto mode : {Emphasis::mean, Emphasis::none}) CHECK(parse_emphasis(emphasis_name(mode)).value() == mode);
  for (const std::string& bad : {std::string(), std::string("Mean"), std::string(100'000, 'x')}) {
    const auto parsed = parse_emphasis(bad);
    REQUIRE(!parsed);
    CHECK(parsed.error().message.find("mean, none") != std::string::npos);
    CHECK(parsed.error().message.size() < 200);
  }
}

}  // namespace sluice
