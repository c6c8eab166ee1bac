#pragma once

#include <array>

namespace sluice {

/// The 256 values of F8_E4M3 ("e4m3fn": bias 7, no infinities, NaN only at 0x7F and 0xFF, largest 448) and F8_E5M2 (bias 15,
/// IEEE-like infinities and NaNs, largest 57344), by code. Exact in f32. Source: OCP 8-bit Floating Point Specification 1.0,
/// table 1.
const std::array<float, 256>& float8_e4m3_values();
const std::array<float, 256>& float8_e5m2_values();

}  // namespace sluice
