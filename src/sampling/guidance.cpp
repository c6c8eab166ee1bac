#include "sampling/guidance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>

namespace sluice {

Result<GuidancePasses> guidance_passes(double scale) {
  if (!std::isfinite(scale) || scale < 0) {
    return fail(Code::invalid_argument, fmt::format("guidance scale {}: use a number from 0 on; 1 turns guidance off", scale));
  }
  return GuidancePasses{.cond = scale != 0, .uncond = scale != 1};
}

void apply_guidance(std::span<const float> cond, std::span<const float> uncond, double scale, std::span<float> out) {
  assert(cond.size() == out.size() && uncond.size() == out.size());
  // In f64 too, uncond + (cond - uncond) need not be cond where one is vastly larger.
  if (scale == 1 || scale == 0) {
    const auto& alone = scale == 1 ? cond : uncond;
    if (alone.data() != out.data()) std::copy(alone.begin(), alone.end(), out.begin());
    return;
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(double{uncond[i]} + scale * (double{cond[i]} - double{uncond[i]}));
  }
}

}  // namespace sluice
