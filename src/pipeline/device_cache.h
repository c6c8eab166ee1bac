#pragma once

#include <optional>
#include <string>

#include "device/device.h"
#include "sluice/devices.h"

namespace sluice {

/// Measurements of this machine's devices, kept from run to run in `devices.json` of a folder, by name, description, physical
/// id, thread count and version of ggml: a device that changes in one of these is another. What is unreadable, foreign or
/// impossible counts as not there, and goes when something is stored. Threads and processes: any; the last to store wins, and
/// the file is always whole.
class DeviceCache {
 public:
  /// An empty folder: nothing is found, and storing does nothing.
  explicit DeviceCache(std::string folder) : folder_(std::move(folder)) {}

  std::optional<DeviceMeasurement> find(const DeviceInfo& info) const;
  /// Makes the folder where there is none. Errors: io (path and the system's text).
  Status store(const DeviceInfo& info, const DeviceMeasurement& measurement) const;

 private:
  std::string folder_;
};

/// What the planner goes by: pinned copies where they were measured. What was not measured is Device::Rates' default.
Device::Rates rates_of(const DeviceMeasurement& measurement);
/// The rates of a device that was measured before. They are rounded and stay as they are until somebody measures anew, so plans
/// made from them are the same from run to run.
std::optional<Device::Rates> cached_rates(const DeviceInfo& info, const std::string& cache_folder);

}  // namespace sluice
