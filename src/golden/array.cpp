#include "golden/array.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/convert.h"

namespace sluice::golden {

std::int64_t Array::row() const {
  std::int64_t count = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) count *= shape[i];
  return count;
}

std::span<const float> Array::at(std::int64_t i) const {
  return std::span(values).subspan(static_cast<std::size_t>(i * row()), static_cast<std::size_t>(row()));
}

Result<Array> read_array(const TensorFile& file, const std::string& name) {
  const auto* info = file.find(name);
  if (!info) return fail(Code::not_found, fmt::format("{}: no tensor {}", file.file->path(), name));
  std::vector<std::byte> raw(info->size);
  SLUICE_TRY(read_tensor(file, *info, raw));
  Array out;
  out.shape.assign(info->shape.rbegin(), info->shape.rend());
  out.values.resize(static_cast<std::size_t>(info->elements()));
  SLUICE_TRY(convert(*info, raw, info->elements(), GGML_TYPE_F32, std::as_writable_bytes(std::span(out.values))));
  return out;
}

Result<std::vector<std::int32_t>> read_ids(const TensorFile& file, const std::string& name) {
  SLUICE_ASSIGN(const auto array, read_array(file, name));
  std::vector<std::int32_t> ids(array.values.size());
  std::transform(array.values.begin(), array.values.end(), ids.begin(), [](float v) { return static_cast<std::int32_t>(v); });
  return ids;
}

}  // namespace sluice::golden
