#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/dtype.h"

namespace sluice {

/// One tensor to be written. `data` is borrowed during the call.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::f32;         ///< any but `quantised`, for which safetensors has no place
  std::vector<std::int64_t> shape;  ///< ggml order: fastest dimension first
  std::span<const std::byte> data;  ///< exactly the bytes of shape and dtype
};

/// Writes a safetensors file in the order given, complete or not at all (io/atomic_file.h). The same input gives the same
/// bytes. With `alignment` > 1 (a power of two) the data of every tensor begins at a multiple of it in the file. The format
/// allows no gaps, so the header is filled up with spaces and what is missing behind a tensor is a U8 tensor "__pad.N", to be
/// ignored by readers. Errors: invalid_argument (a name twice, empty, no UTF-8 or reserved; bytes that do not match the shape),
/// io.
Status write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                         const std::map<std::string, std::string>& metadata = {}, Bytes alignment = 1);

}  // namespace sluice
