#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::cli {

/// Refuses, before anything is computed, a path that could not be written afterwards: a missing folder, a folder in the file's
/// place, a name that is no PNG. An empty path (the default name) is fine. Errors: invalid_argument.
Status check_output(const std::string& path);

/// The names of `count` pictures: `path` itself for one, else path-0001.png, path-0002.png, …
/// An empty `path` stands for sluice-<seed>.png.
std::vector<std::string> output_paths(const std::string& path, std::int64_t seed, std::size_t count);

}  // namespace sluice::cli
