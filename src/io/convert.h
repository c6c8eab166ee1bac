#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "io/tensor_file.h"

namespace sluice {

/// Converts `count` elements stored as `info` declares (a whole number of rows for block types) to `to`.
/// Supported: any DType but `quantised` → f32, f16, bf16 (values beyond f16's range become infinities; NaN stays NaN; f64 is
/// rounded once); quantised → f32, f16, bf16 through ggml's own tables; identity for equal types. `from` and `out` need no
/// alignment. Errors: unsupported (names both types). Cost: one pass; identity is a memcpy.
Status convert(const TensorInfo& info, std::span<const std::byte> from, std::int64_t count, ggml_type to,
               std::span<std::byte> out);

/// Whether `convert` can do it; pure, for checks before any large allocation.
bool convertible(const TensorInfo& info, ggml_type to);

}  // namespace sluice
