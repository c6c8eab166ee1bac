#pragma once

#include <string>

namespace sluice::cli {

/// Where the program keeps what it measured: `sluice` in $XDG_CACHE_HOME, else in ~/.cache; empty where there is neither. Paths
/// that are not absolute do not count. Source: XDG Base Directory Specification.
std::string cache_folder();

}  // namespace sluice::cli
