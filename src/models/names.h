#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/tensor_file.h"

namespace sluice {

/// A file's tensors under one prefix, by the rest of their names. Reads dimensions and structure off a component, nothing else.
/// Built once per component: a sort of the names. The file must outlive it.
class Names {
 public:
  Names(const TensorFile& file, std::string prefix);

  const std::string& prefix() const { return prefix_; }
  /// nullptr when absent.
  const TensorInfo* find(std::string_view name) const;
  /// Whether any tensor's name starts with this.
  bool any(std::string_view start) const;
  /// One more than the largest n for which a tensor `start` + n + "." exists; 0 when there is none. At most the number of
  /// tensors.
  int count(std::string_view start) const;
  /// Dimension `axis` (ggml order) of the first of these tensors that exists: 1 to 2^24. Errors: not_found (names them all),
  /// unsupported (there, but of a dtype this build does not know), corrupt (rank too low, empty or absurdly wide).
  Result<std::int64_t> dimension(std::initializer_list<std::string_view> names, std::size_t axis) const;

 private:
  const TensorFile& file_;
  std::string prefix_;
  std::vector<std::string_view> sorted_;  // without the prefix
};

}  // namespace sluice
