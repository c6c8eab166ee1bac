#include "io/dtype.h"

namespace sluice {

Bytes dtype_size(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16: return 2;
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::i8:
    case DType::u8:
    case DType::boolean: return 1;
    case DType::quantised: return 0;
  }
  return 0;
}

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::f8_e4m3: return "f8_e4m3";
    case DType::f8_e5m2: return "f8_e5m2";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::i16: return "i16";
    case DType::i8: return "i8";
    case DType::u8: return "u8";
    case DType::boolean: return "bool";
    case DType::quantised: return "quantised";
  }
  return "?";
}

std::optional<ggml_type> dtype_to_ggml(DType dtype) {
  switch (dtype) {
    case DType::f64: return GGML_TYPE_F64;
    case DType::f32: return GGML_TYPE_F32;
    case DType::f16: return GGML_TYPE_F16;
    case DType::bf16: return GGML_TYPE_BF16;
    case DType::i64: return GGML_TYPE_I64;
    case DType::i32: return GGML_TYPE_I32;
    case DType::i16: return GGML_TYPE_I16;
    case DType::i8: return GGML_TYPE_I8;
    default: return std::nullopt;
  }
}

}  // namespace sluice
