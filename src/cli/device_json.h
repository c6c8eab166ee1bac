#pragma once

#include <nlohmann/json.hpp>

#include "sluice/devices.h"

namespace sluice::cli {

/// Devices as scripts read them. Sizes are bytes, rates bytes or operations a second, times seconds; what is not known or not
/// there is null. Keys only ever get added.
nlohmann::json to_json(const DeviceSummary& device);
nlohmann::json to_json(const DiskRate& disk);

}  // namespace sluice::cli
