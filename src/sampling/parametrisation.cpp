#include "sampling/parametrisation.h"

#include <cassert>
#include <cmath>

#include "sampling/names.h"

namespace sluice {
namespace {

constexpr std::pair<Prediction, std::string_view> kNames[] = {{Prediction::eps, "eps"}, {Prediction::v, "v"}};

}  // namespace

std::string_view prediction_name(Prediction prediction) { return name_in<Prediction>(prediction, kNames); }
Result<Prediction> parse_prediction(std::string_view name) { return parse_name<Prediction>("prediction", name, kNames); }

void scale_input(std::span<const float> x, double sigma, std::span<float> out) {
  assert(x.size() == out.size());
  const double scale = std::sqrt(sigma * sigma + 1);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(double{x[i]} / scale);
}

void to_denoised(Prediction prediction, std::span<const float> x, std::span<const float> output, double sigma,
                 std::span<float> out) {
  assert(x.size() == out.size() && output.size() == out.size());
  const double variance = sigma * sigma + 1;
  const double keep = prediction == Prediction::v ? 1 / variance : 1.0;
  const double take = prediction == Prediction::v ? sigma / std::sqrt(variance) : sigma;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(keep * double{x[i]} - take * double{output[i]});
}

void timestep_embedding(double t, std::span<float> out) {
  const std::size_t half = out.size() / 2;
  if (out.size() % 2 != 0) out.back() = 0;
  for (std::size_t i = 0; i < half; ++i) {
    const double angle = t * std::exp(-std::log(10000.0) * static_cast<double>(i) / static_cast<double>(half));
    out[i] = static_cast<float>(std::cos(angle));
    out[half + i] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace sluice
