#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace sluice {

/// Whether tensors of these shapes (ggml order) hold the same elements in the same order: equal once dimensions of 1 are left
/// out. A 1x1 convolution kernel [1, 1, in, out] is the matrix [in, out]; containers may also drop trailing ones.
bool same_elements(std::span<const std::int64_t> a, std::span<const std::int64_t> b);

/// "[3, 3, 320, 4]", ggml order.
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace sluice
