#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/tensor_file.h"

namespace sluice::golden {

/// One case of the oracle: a folder with case.json.
struct Case {
  std::string family, name;  ///< from case.json, or from the folders' names where it cannot be read
  std::filesystem::path folder;
  nlohmann::json meta;
  std::string problem;  ///< why `meta` is empty

  std::string id() const { return family + "/" + name; }
  /// A file beside case.json.
  std::string path(const std::string& file) const { return (folder / file).lexically_normal().string(); }
  /// The file named by `io`. Errors: those of opening it.
  Result<std::shared_ptr<const TensorFile>> io() const;
  /// The model file number `index`.
  Result<std::shared_ptr<const TensorFile>> weights(std::size_t index = 0) const;
  std::string weight_dtype() const { return meta.value("weight_dtype", std::string("f32")); }
};

/// Every case in or below the folders, sorted by family and name. A folder without case.json is no case.
/// Errors: not_found when a folder is missing.
Result<std::vector<Case>> find_cases(const std::vector<std::string>& folders);

}  // namespace sluice::golden
