#include "golden/tolerance.h"

#include <algorithm>
#include <limits>

namespace sluice::golden {
namespace {

double share(double got, double allowed) {
  if (allowed < 0) return 0;
  if (allowed == 0) return got == 0 ? 0 : std::numeric_limits<double>::infinity();
  return got / allowed;
}

}  // namespace

double Tolerance::used(const Difference& d) const {
  return std::max({share(d.rel_rms, rel_rms), share(d.max_abs_over_rms, max_abs_over_rms), share(d.max_abs, max_abs)});
}

bool Tolerance::allows(const Difference& d) const { return used(d) <= 1; }

Tolerance tolerance(Work work, std::string_view weight_dtype, std::string_view) {
  // Every backend of ggml rounds the activations that meet f16 or bf16 weights to that type, so one column serves all of them.
  // Its bounds are three to five times the worst that was measured on the CPU: 8.1e-4 and 4.3e-3 for networks, 1.8e-3
  // and 8.3e-3 for pipelines; the same networks with f32 weights stay below 1e-5, so the difference is that rounding and
  // nothing else.
  const bool f32 = weight_dtype == "f32";
  switch (work) {
    case Work::loading: return {.max_abs = 0};
    case Work::dequantise: return {.max_abs = 1e-6};
    case Work::sampling: return {.rel_rms = 1e-5, .max_abs_over_rms = 1e-4};
    case Work::random: return {.max_abs = 1e-5};
    case Work::network:
      return f32 ? Tolerance{.rel_rms = 1e-4, .max_abs_over_rms = 2e-3} : Tolerance{.rel_rms = 3e-3, .max_abs_over_rms = 2e-2};
    case Work::pipeline:
      return f32 ? Tolerance{.rel_rms = 1e-3, .max_abs_over_rms = 1e-2} : Tolerance{.rel_rms = 8e-3, .max_abs_over_rms = 4e-2};
  }
  return {.max_abs = 0};
}

}  // namespace sluice::golden
