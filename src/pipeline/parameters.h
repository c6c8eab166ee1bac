#pragma once

#include <string>

#include "pipeline/settings.h"

namespace sluice {

/// The customary "parameters" text of generated PNG files (the form AUTOMATIC1111's web UI writes and others read).
std::string parameters_text(const Settings& settings, std::int64_t seed, const std::string& model_name,
                            const std::string& model_hash, std::uint64_t variants);

}  // namespace sluice
