#pragma once

#include <nlohmann/json.hpp>

namespace sluice::bench {

/// What every line begins with: commit, CPU, build type, compiler.
nlohmann::json machine();

/// Why this build must not be measured ("debug", "sanitized"); nullptr if it may.
const char* unfit_build();

}  // namespace sluice::bench
