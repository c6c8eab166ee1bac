#pragma once

#include <span>

namespace sluice::golden {

/// How far a result is from what the oracle has.
struct Difference {
  double rel_rms = 0;           ///< rms(got - want) / rms(want)
  double max_abs_over_rms = 0;  ///< max |got - want| / rms(want)
  double max_abs = 0;           ///< max |got - want|
};

/// Equal NaNs and equal infinities are equal; a NaN or infinity in one place only, or sizes that differ, make every figure
/// infinite. Where all of `want` is 0, its rms is taken as 1. Sums in f64.
Difference compare(std::span<const float> got, std::span<const float> want);

}  // namespace sluice::golden
