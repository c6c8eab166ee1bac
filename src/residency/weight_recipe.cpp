#include "residency/weight_recipe.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "io/convert.h"
#include "nn/weight_shape.h"

namespace sluice {
namespace {

std::string_view type_text(const TensorInfo& info) {
  return info.dtype == DType::quantised ? ggml_type_name(info.ggml) : dtype_name(info.dtype);
}

/// The shape that `range.rows` rows of the tensor have: its own with a shorter last dimension, where the rows end at one.
std::vector<std::int64_t> shape_of(const TensorInfo& info, const SourceRange& range) {
  if (info.shape.size() < 2) return {range.rows * range.row_elements};
  auto shape = info.shape;
  std::int64_t rows_per_last = 1;
  for (std::size_t i = 1; i + 1 < shape.size(); ++i) rows_per_last *= shape[i];
  if (rows_per_last == 0 || range.rows % rows_per_last != 0) return {range.row_elements, range.rows};
  shape.back() = range.rows / rows_per_last;
  return shape;
}

}  // namespace

ggml_type device_type_for(const TensorInfo& info, WeightRole role) {
  switch (info.dtype) {
    case DType::i64:
    case DType::i32:
    case DType::i16:
    case DType::i8:
    case DType::u8:
    case DType::boolean: return GGML_TYPE_COUNT;
    default: break;
  }
  if (role == WeightRole::vector || role == WeightRole::dense) return GGML_TYPE_F32;
  const bool matrix = role == WeightRole::matrix;
  switch (info.dtype) {
    case DType::f16:
    case DType::f8_e4m3:
    case DType::f8_e5m2: return GGML_TYPE_F16;
    case DType::bf16: return matrix ? GGML_TYPE_BF16 : GGML_TYPE_F32;
    case DType::quantised: return matrix ? info.ggml : GGML_TYPE_F16;
    default: return GGML_TYPE_F32;
  }
}

Result<SourceRange> source_range(const WeightSource& source) {
  if (!source.file || source.tensor >= source.file->tensors.size()) return fail(Code::not_found, "no such tensor in the file");
  const TensorInfo& info = source.file->tensors[source.tensor];
  const std::int64_t elements = info.elements();
  SourceRange range;
  // A quantised vector cannot be cut between its elements: it is one row.
  const bool rows_are_elements = info.shape.empty() || (info.shape.size() == 1 && info.dtype != DType::quantised);
  range.row_elements = rows_are_elements ? 1 : info.shape[0];
  const std::int64_t total = range.row_elements > 0 ? elements / range.row_elements : 0;
  range.row_bytes = total > 0 ? info.size / static_cast<Bytes>(total) : 0;
  if (source.first_row < 0 || source.first_row > total || source.rows < -1 ||
      (source.rows >= 0 && source.rows > total - source.first_row))
    return fail(Code::invalid_argument, fmt::format("rows {} + {} lie outside the {} rows of '{}'", source.first_row,
                                                    source.rows, total, printable(info.name)));
  range.rows = source.rows >= 0 ? source.rows : total - source.first_row;
  range.begin = info.offset + static_cast<Bytes>(source.first_row) * range.row_bytes;
  range.bytes = static_cast<Bytes>(range.rows) * range.row_bytes;
  return range;
}

std::int64_t WeightRecipe::unit_elements() const { return info().dtype == DType::quantised ? ggml_blck_size(info().ggml) : 1; }

Bytes WeightRecipe::unit_bytes() const {
  return info().dtype == DType::quantised ? ggml_type_size(info().ggml) : dtype_size(info().dtype);
}

Result<WeightRecipe> resolve_weight(const WeightDecl& decl, const WeightSource& source) {
  const bool usable = !decl.shape.empty() && decl.shape.size() <= GGML_MAX_DIMS &&
                      std::all_of(decl.shape.begin(), decl.shape.end(), [](std::int64_t n) { return n > 0; });
  if (!usable)
    return fail(Code::invalid_argument,
                fmt::format("{}: a weight has 1 to 4 dimensions, not {}", decl.name, shape_text(decl.shape)));
  auto range = source_range(source);
  if (!range) return fail_while(decl.name, std::move(range).error());
  const TensorInfo& info = source.file->tensors[source.tensor];
  const auto got = shape_of(info, *range);
  if (!same_elements(got, decl.shape))
    return fail(Code::invalid_argument,
                fmt::format("{}: got {} {}, expected {}", decl.name, type_text(info), shape_text(got), shape_text(decl.shape)));
  const ggml_type type = device_type_for(info, decl.role);
  if (type == GGML_TYPE_COUNT || !convertible(info, type))
    return fail(Code::unsupported, fmt::format("{}: got {} {}, expected a floating-point or quantised type", decl.name,
                                               type_text(info), shape_text(got)));
  if (decl.shape[0] % ggml_blck_size(type) != 0)
    return fail(Code::invalid_argument, fmt::format("{}: rows of {} elements are no whole {} blocks of {}", decl.name,
                                                    decl.shape[0], ggml_type_name(type), ggml_blck_size(type)));
  return WeightRecipe{source.file, source.tensor,    range->begin, range->bytes, range->rows * range->row_elements,
                      type,        info.ggml == type};
}

}  // namespace sluice
