#include "golden/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice::golden {

Difference compare(std::span<const float> got, std::span<const float> want) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  if (got.size() != want.size()) return {kInfinite, kInfinite, kInfinite};
  double error = 0, norm = 0, largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double g = got[i], w = want[i];
    if ((std::isnan(g) && std::isnan(w)) || g == w) {
      if (std::isfinite(w)) norm += w * w;
      continue;
    }
    if (!std::isfinite(g) || !std::isfinite(w)) return {kInfinite, kInfinite, kInfinite};
    norm += w * w;
    error += (g - w) * (g - w);
    largest = std::max(largest, std::abs(g - w));
  }
  const auto count = static_cast<double>(std::max<std::size_t>(want.size(), 1));
  const double rms = norm > 0 ? std::sqrt(norm / count) : 1.0;
  return {std::sqrt(error / count) / rms, largest / rms, largest};
}

}  // namespace sluice::golden
