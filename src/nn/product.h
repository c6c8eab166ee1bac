#pragma once

#include "ggml.h"

namespace sluice {

/// a [k, m, …] × b [k, n, …] → f32 [m, n, …], summed in f32. Without being asked, backends with arithmetic in f16 sum in f16
/// too: that costs a digit and overflows at 65504.
inline ggml_tensor* product(ggml_context* context, ggml_tensor* a, ggml_tensor* b) {
  ggml_tensor* y = ggml_mul_mat(context, a, b);
  ggml_mul_mat_set_prec(y, GGML_PREC_F32);
  return y;
}

}  // namespace sluice
