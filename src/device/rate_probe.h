#pragma once

#include "device/device.h"

namespace sluice {

/// Two significant figures: 12.34e9 → 12e9. Zero and what is not finite stay. Pure.
double round_rate(double rate);

/// What a measurement uses of the device.
struct RateProbeSize {
  int matrix = 512;      ///< rows and columns of the f32 matrices multiplied
  Bytes copy = 2 * MiB;  ///< bytes of the copies timed
  constexpr Bytes bytes() const { return 3 * Bytes(matrix) * Bytes(matrix) * 4 + copy; }
};
inline constexpr RateProbeSize kCpuRateProbe{};
inline constexpr RateProbeSize kGpuRateProbe{.matrix = 1024, .copy = 16 * MiB};

/// Times copies from pageable host memory and products of square f32 matrices, the best of a few each, at most some 50 ms in
/// all, rounded to two significant figures. Allocates size.bytes() on the device and frees them again. Errors: device_oom,
/// device_failed.
Result<Device::Rates> probe_rates(ggml_backend_t backend, ggml_backend_buffer_type_t buffer_type, RateProbeSize size);

}  // namespace sluice
