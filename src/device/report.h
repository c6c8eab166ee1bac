#pragma once

#include <string>
#include <vector>

#include "device/device.h"

namespace sluice {

/// How a device's memory may be used, as its driver says (ggml_backend_dev_get_props).
struct DeviceUsage {
  bool async = false;             ///< copies and computations may be queued
  bool events = false;            ///< and wait for one another
  bool pinned = false;            ///< it hands out pinned host memory
  bool maps_host_memory = false;  ///< host memory can be made its own without a copy
};
/// All false for a device that is not in ggml's registry (the simulated one).
DeviceUsage usage_of(const DeviceInfo& info);

/// What becomes of weights on a device, by type (device/probe.h), in the order of kWeightTypes and by ggml's names.
struct WeightTypes {
  std::vector<std::string> raw;          ///< whole blocks are copied as they are
  std::vector<std::string> by_tensor;    ///< computes with them, but copied tensor by tensor
  std::vector<std::string> unsupported;  ///< no products with them
};
/// Cost: the probes of Device::raw_images.
WeightTypes weight_types(const Device& device);

}  // namespace sluice
