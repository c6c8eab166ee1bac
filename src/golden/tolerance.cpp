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

bool computes_in_f32(std::string_view backend) { return backend == "cpu" || backend == "sim"; }

Tolerance tolerance(Work work, std::string_view weight_dtype, std::string_view backend) {
  // Every backend of ggml rounds the activations that meet f16 or bf16 weights to that type. The bounds are three to five times
  // the worst that was measured on the CPU: 8.1e-4 and 4.3e-3 for networks, 1.8e-3 and 8.3e-3 for pipelines; the same networks
  // with f32 weights stay below 1e-5 there, so the difference is that rounding and nothing else.
  // Graphics backends multiply f32 by f32 on units that see 11 bits of each factor (f16 in Vulkan, TF32 in CUDA) and sum in
  // f32: two roundings of the size of that one, √2 times the error, within the same bounds.
  const bool f32 = weight_dtype == "f32" && computes_in_f32(backend);
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
