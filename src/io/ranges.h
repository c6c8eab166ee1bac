#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/tensor_file.h"

namespace sluice {

/// What a header claims about one tensor, before anything was checked.
struct TensorClaim {
  std::string name;
  std::string dtype_text;      ///< as the file spells it, for messages
  std::optional<DType> dtype;  ///< nullopt: this build does not know it
  ggml_type ggml = GGML_TYPE_COUNT;
  std::vector<std::int64_t> shape;  ///< ggml order
  Bytes begin = 0;                  ///< from the start of the data
  std::optional<Bytes> end;         ///< where the format declares it; must be there when `dtype` is not
};

/// Bytes that `shape` takes: product × element size, or whole blocks per row for block types. Errors (corrupt, without a file
/// name): negative dimension, row that is no multiple of the block, more than 2^63-1 elements or 2^64-1 bytes. A zero dimension
/// makes the size 0; the other dimensions must still multiply to less than 2^63.
Result<Bytes> tensor_bytes(DType dtype, ggml_type ggml, const std::vector<std::int64_t>& shape);

/// The one validator of all containers. Fills `tensors`, `index`, `unknown` and `warnings` of `into` (whose `file` is set) only
/// if every claim holds: name unique, shape and size agree, range inside the real file, no byte owned twice. All sums are
/// checked. Holes of less than `alignment` bytes are padding; larger ones and trailing bytes are warnings. Unknown dtypes:
/// range checked as for any other tensor, name to `unknown`. Errors: corrupt, naming file, tensor, expected and declared bytes.
/// Cost: a sort of the tensors.
Status admit_tensors(TensorFile& into, std::vector<TensorClaim> claims, Bytes data_begin, Bytes alignment);

}  // namespace sluice
