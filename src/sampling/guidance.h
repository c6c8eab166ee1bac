#pragma once

#include <span>

#include "base/result.h"

namespace sluice {

/// Which network passes a step needs.
struct GuidancePasses {
  bool cond = true;
  bool uncond = true;
  int count() const { return int{cond} + int{uncond}; }
};

/// The rule for a guidance scale s (Ho & Salimans 2022), out = uncond + s (cond - uncond):
///   s = 1: cond alone, one pass a step; the negative prompt is not evaluated
///   s = 0: uncond alone, one pass a step; the prompt is not evaluated (worth a warning to the user)
///   any other s > 0, between 0 and 1 too: both passes and the formula
/// Errors: invalid_argument for NaN, infinite and negative scales.
Result<GuidancePasses> guidance_passes(double scale);

/// out = uncond + scale (cond - uncond), on network outputs (eps or v), f32, computed in f64. All three of one size; `out`
/// may be either input. At scale 1 exactly cond, at 0 exactly uncond.
void apply_guidance(std::span<const float> cond, std::span<const float> uncond, double scale, std::span<float> out);

}  // namespace sluice
