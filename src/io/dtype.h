#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "ggml.h"

namespace sluice {

/// How a file stores a tensor's elements. A superset of ggml's types: files hold more than ggml computes with.
enum class DType : std::uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  i64,
  i32,
  i16,
  i8,
  u8,
  boolean,
  quantised,  ///< a ggml block type; which one is in TensorInfo::ggml
};

/// Bytes of one element; 0 for `quantised`.
Bytes dtype_size(DType dtype);
/// "f16", "f8_e4m3", ...; `quantised` gives "quantised".
std::string_view dtype_name(DType dtype);
/// The ggml type with the same bytes, if there is one (f64, i64, i32, i16, i8, f32, f16, bf16). u8, boolean and fp8 have none.
std::optional<ggml_type> dtype_to_ggml(DType dtype);

}  // namespace sluice
