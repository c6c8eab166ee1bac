#pragma once

#include <string>

#include "sluice/devices.h"

namespace sluice::cli {

/// A device as people read it: a heading, then a line for each thing that is known.
std::string device_text(const DeviceSummary& device);
std::string disk_text(const DiskRate& disk);

}  // namespace sluice::cli
