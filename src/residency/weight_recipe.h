#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "io/tensor_file.h"
#include "nn/model.h"

namespace sluice {

/// Where a weight's bytes come from: a tensor of a file (or rows of it), and the type they have on a device. Copies of a weight
/// can always be given up, because this lives as long as its registration. Rows are those of shape[0] elements; in a tensor of
/// one dimension (a fused bias) each element is a row.
struct WeightSource {
  std::shared_ptr<const TensorFile> file;
  std::size_t tensor = 0;      ///< index into file->tensors
  std::int64_t first_row = 0;  ///< for parts of fused tensors
  std::int64_t rows = -1;      ///< -1: all that follow
};

/// Which device type a weight gets: the file's where the role allows, else the nearest wider one. Pure.
/// Matrices: f32, f16, bf16 and quantised stay, fp8 becomes f16, f64 becomes f32. Kernels: f32 and f16 stay, bf16 and f64
/// become f32, fp8 and quantised become f16. Vectors and dense weights: f32. Integers have no place among weights:
/// GGML_TYPE_COUNT.
ggml_type device_type_for(const TensorInfo& info, WeightRole role);

/// The bytes of a file that a source names, and the rows they form.
struct SourceRange {
  Bytes begin = 0, bytes = 0;     ///< in the file
  std::int64_t row_elements = 0;  ///< elements per row
  std::int64_t rows = 0;
  Bytes row_bytes = 0;
};

/// Errors: not_found (no such tensor), invalid_argument (rows outside the tensor). Pure.
Result<SourceRange> source_range(const WeightSource& source);

/// How one weight is made from its file: checked once at registration, followed at every use.
struct WeightRecipe {
  std::shared_ptr<const TensorFile> file;
  std::size_t tensor = 0;
  Bytes begin = 0, bytes = 0;  ///< its range of the file
  std::int64_t elements = 0;
  ggml_type type = GGML_TYPE_F32;  ///< on the device
  bool identity = false;           ///< type is the file's own

  const TensorInfo& info() const { return file->tensors[tensor]; }
  Bytes end() const { return begin + bytes; }
  bool same_bytes(const WeightRecipe& other) const {
    return file->file == other.file->file && begin == other.begin && bytes == other.bytes && type == other.type &&
           info().dtype == other.info().dtype;
  }
  /// The least run of elements that can be converted on its own, and its bytes in the file.
  std::int64_t unit_elements() const;
  Bytes unit_bytes() const;
};

/// The recipe for a declared weight. Shapes must agree but for dimensions of 1 (same_elements).
/// Errors, as "name: got ..., expected ...": not_found, invalid_argument (shape, rows), unsupported (type). Pure.
Result<WeightRecipe> resolve_weight(const WeightDecl& decl, const WeightSource& source);

}  // namespace sluice
