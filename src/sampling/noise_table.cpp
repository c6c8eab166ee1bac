#include "sampling/noise_table.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace sluice {

NoiseTable NoiseTable::scaled_linear(int steps, double first, double last) {
  assert(steps >= 2 && first > 0 && first <= last && last < 1);
  NoiseTable table;
  const double from = std::sqrt(first), step = (std::sqrt(last) - from) / (steps - 1);
  double product = 1;
  for (int t = 0; t < steps; ++t) {
    const double root = from + step * t;
    product *= 1 - root * root;
    table.alphas_cumprod_.push_back(product);
    table.sigmas_.push_back(std::sqrt((1 - product) / product));
    table.log_sigmas_.push_back(std::log(table.sigmas_.back()));
  }
  return table;
}

const NoiseTable& NoiseTable::stable_diffusion() {
  static const NoiseTable table = scaled_linear(1000, 0.00085, 0.012);
  return table;
}

double NoiseTable::t_to_sigma(double t) const {
  t = std::clamp(t, 0.0, static_cast<double>(steps() - 1));
  const auto low = static_cast<std::size_t>(t);
  const double w = t - static_cast<double>(low);
  if (w == 0) return sigmas_[low];
  return std::exp((1 - w) * log_sigmas_[low] + w * log_sigmas_[low + 1]);
}

double NoiseTable::sigma_to_t(double sigma) const {
  if (!(sigma > sigma_min())) return 0;
  if (sigma >= sigma_max()) return steps() - 1;
  const double log_sigma = std::log(sigma);
  const auto above = std::upper_bound(log_sigmas_.begin() + 1, log_sigmas_.end() - 1, log_sigma);
  const auto low = static_cast<std::size_t>(above - log_sigmas_.begin()) - 1;
  const double w = (log_sigma - log_sigmas_[low]) / (log_sigmas_[low + 1] - log_sigmas_[low]);
  return static_cast<double>(low) + std::clamp(w, 0.0, 1.0);
}

}  // namespace sluice
