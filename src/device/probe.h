#pragma once

#include <array>

#include "base/result.h"
#include "ggml-backend.h"

namespace sluice {

/// The types weights may have on a device.
inline constexpr std::array kWeightTypes = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q8_0,   GGML_TYPE_Q4_0,
                                            GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q2_K,   GGML_TYPE_Q3_K,
                                            GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS};

/// Device memory that `probe_raw_images` allocates and frees again, at most.
inline constexpr std::size_t kProbeBytes = 256 * 1024;

/// Whether one raw copy over a slot is as good as uploading the weights in it one by one, for products with weights of `type`:
/// two matrices in one slot, filled, poisoned and refilled through an I8 tensor over the slot's bytes, must give the same bits
/// as the same matrices in memory of their own. False where the backend cannot multiply
/// by that type, and for all that are not weight types. Errors: device_oom,
/// device_failed. Cost: 0.3 ms for f32 on one CPU thread; compiles a kernel on some GPUs.
Result<bool> probe_raw_images(ggml_backend_t backend, ggml_backend_buffer_type_t buffer_type, ggml_type type);

}  // namespace sluice
