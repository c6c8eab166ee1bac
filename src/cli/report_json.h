#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sluice/engine.h"

namespace sluice::cli {

/// Reports as scripts read them. Sizes are bytes, times seconds; keys only ever get added.
nlohmann::json to_json(const PlanReport& plan);
nlohmann::json to_json(const Generated& generated, const std::vector<std::string>& files);
nlohmann::json to_json(const FileSummary& summary);
/// {"error": {"code", "message", "advice", "needed", "available", "exit"}}.
nlohmann::json to_json(const Error& error);

/// One line; bytes of foreign names that are no UTF-8 are replaced.
std::string dump(const nlohmann::json& json);

}  // namespace sluice::cli
