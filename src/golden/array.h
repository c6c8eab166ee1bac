#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/tensor_file.h"

namespace sluice::golden {

/// A tensor of an oracle file on the host. `shape` in torch's order (slowest first), as case.json speaks; values row-major,
/// f32.
struct Array {
  std::vector<std::int64_t> shape;
  std::vector<float> values;

  /// Elements of one entry along the first axis.
  std::int64_t row() const;
  /// Entry `i` along the first axis.
  std::span<const float> at(std::int64_t i) const;
};

/// Reads a tensor, whatever its stored type, as f32. Errors: not_found, those of reading and converting.
Result<Array> read_array(const TensorFile& file, const std::string& name);
/// The same as whole numbers (token ids); exact below 2^24.
Result<std::vector<std::int32_t>> read_ids(const TensorFile& file, const std::string& name);

}  // namespace sluice::golden
