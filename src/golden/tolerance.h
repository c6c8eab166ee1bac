#pragma once

#include <string>
#include <string_view>

#include "golden/compare.h"

namespace sluice::golden {

/// The most that a result may differ. A figure of 0 asks for equality, a negative one is not asked for.
struct Tolerance {
  double rel_rms = -1;
  double max_abs_over_rms = -1;
  double max_abs = -1;

  bool allows(const Difference& difference) const;
  /// Which share of what is allowed is used up; above 1: not allowed.
  double used(const Difference& difference) const;
};

/// What kind of computation a tolerance is for.
enum class Work {
  loading,     ///< bytes read and widened
  dequantise,  ///< block types expanded by ggml
  sampling,    ///< host arithmetic in f64, stored as f32
  random,      ///< random streams: libm's last bits
  network,     ///< one pass of a network
  pipeline,    ///< several networks in a row, fed back into each other
};

/// Whether products of f32 matrices keep all bits of their factors on a backend ("cpu", "sim", "vulkan0", …). Pure.
bool computes_in_f32(std::string_view backend);

/// The one table. `weight_dtype` as case.json has it ("f32", "f16", "bf16", …); `backend` as Setup::backend().
Tolerance tolerance(Work work, std::string_view weight_dtype, std::string_view backend);

}  // namespace sluice::golden
