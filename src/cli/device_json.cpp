#include "cli/device_json.h"

namespace sluice::cli {
namespace {

using nlohmann::json;

json positive(double value) { return value > 0 ? json(value) : json(nullptr); }

json to_json(const DeviceMeasurement& m) {
  return {{"largest_buffer", m.largest_buffer},
          {"largest_buffer_at_least", m.largest_at_least},
          {"to_device", positive(m.to_device)},
          {"to_device_pinned", positive(m.to_device_pinned)},
          {"from_device", positive(m.from_device)},
          {"from_device_pinned", positive(m.from_device_pinned)},
          {"latency_s", positive(m.latency_s)},
          {"flops_per_s", positive(m.flops_per_s)},
          {"overlap", m.overlap >= 0 ? json(m.overlap) : json(nullptr)},
          {"raw_types", m.raw_types},
          {"by_tensor_types", m.by_tensor_types},
          {"unsupported_types", m.unsupported_types}};
}

}  // namespace

json to_json(const DeviceSummary& device) {
  return {{"name", device.name},
          {"description", device.description},
          {"kind", device.kind},
          {"device_id", device.device_id},
          {"memory_known", device.memory_known},
          {"memory_doubt", device.memory_known ? json(nullptr) : json(device.memory_doubt)},
          {"total", device.memory_known ? json(device.total) : json(nullptr)},
          {"free", device.memory_known ? json(device.free) : json(nullptr)},
          {"alignment", device.alignment},
          {"max_buffer", device.max_buffer},
          {"threads", device.threads},
          {"host_memory", device.host_memory},
          {"maps_host_memory", device.maps_host_memory},
          {"pinned", device.pinned},
          {"async", device.async},
          {"events", device.events},
          {"note", device.note},
          {"measured", device.measured ? to_json(*device.measured) : json(nullptr)}};
}

json to_json(const DiskRate& disk) { return {{"path", disk.path}, {"bytes", disk.bytes}, {"bytes_per_s", disk.bytes_per_s}}; }

}  // namespace sluice::cli
