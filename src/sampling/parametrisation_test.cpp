#include "sampling/parametrisation.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

namespace sluice {

TEST_CASE("to_denoised: both predictions undo the noise they were made from") {
  // x = x0 + sigma n; an ideal network, seeing x / sqrt(sigma^2 + 1), says eps = n or v = (n - sigma x0) / sqrt(sigma^2 + 1).
  const std::vector<float> x0{0.3f, -1.2f, 0.0f}, n{1.5f, 0.2f, -0.7f};
  for (const double sigma : {0.03, 1.0, 14.6}) {
    CAPTURE(sigma);
    std::vector<float> x(3), v(3), got(3);
    for (std::size_t i = 0; i < 3; ++i) {
      x[i] = static_cast<float>(double{x0[i]} + sigma * double{n[i]});
      v[i] = static_cast<float>((double{n[i]} - sigma * double{x0[i]}) / std::sqrt(sigma * sigma + 1));
    }
    to_denoised(Prediction::eps, x, n, sigma, got);
    for (std::size_t i = 0; i < 3; ++i) CHECK(std::abs(got[i] - x0[i]) < 2e-6);
    to_denoised(Prediction::v, x, v, sigma, got);
    for (std::size_t i = 0; i < 3; ++i) CHECK(std::abs(got[i] - x0[i]) < 2e-6);
    auto in_place = x;
    to_denoised(Prediction::v, in_place, v, sigma, in_place);
    CHECK(in_place == got);
  }
}

TEST_CASE("prediction: names parse back; others are refused with the list") {
  for (const auto p : {Prediction::eps, Prediction::v}) CHECK(parse_prediction(prediction_name(p)).value() == p);
  CHECK(parse_prediction("").error().message.find("eps, v") != std::string::npos);
}

TEST_CASE("timestep_embedding: cosines first; t = 0 is ones and zeros; an odd place stays 0; no dimension is too small") {
  std::vector<float> out(7, 9.0f);
  timestep_embedding(0, out);
  CHECK(out == std::vector<float>{1, 1, 1, 0, 0, 0, 0});
  std::vector<float> two(2);
  timestep_embedding(0.5, two);
  CHECK(two == std::vector<float>{static_cast<float>(std::cos(0.5)), static_cast<float>(std::sin(0.5))});
  std::vector<float> one(1, 9.0f), none;
  timestep_embedding(3, one);
  timestep_embedding(3, none);
  CHECK(one[0] == 0);
}

}  // namespace sluice
