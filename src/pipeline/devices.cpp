#include "sluice/devices.h"

#include <fmt/format.h>

#include "device/device.h"
#include "device/rate_probe.h"
#include "device/report.h"
#include "device/report_buffer.h"
#include "device/report_rates.h"
#include "io/read_rate.h"
#include "pipeline/device_cache.h"

namespace sluice {
namespace {

constexpr Bytes kMostRead = GiB;
constexpr double kMostReadSeconds = 3;

const char* kind_name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::gpu: return "gpu";
    case DeviceKind::integrated: return "integrated";
    case DeviceKind::simulated: return "simulated";
  }
  return "";
}

DeviceSummary summary_of(const DeviceInfo& info, const MemoryView& memory) {
  const DeviceUsage usage = usage_of(info);
  DeviceSummary s;
  s.name = info.name;
  s.description = info.description;
  s.kind = kind_name(info.kind);
  s.device_id = info.device_id;
  s.total = memory.total;
  s.free = memory.free;
  s.memory_known = memory.known;
  if (!memory.known) s.memory_doubt = memory.doubt.empty() ? "the driver says nothing of its memory" : memory.doubt;
  s.alignment = info.alignment;
  s.max_buffer = info.max_buffer;
  s.threads = info.threads;
  s.host_memory = info.host_memory;
  s.maps_host_memory = usage.maps_host_memory;
  s.pinned = usage.pinned;
  s.async = usage.async;
  s.events = usage.events;
  if (s.name.starts_with("vulkan") && s.description.find("NVIDIA") != std::string::npos)
    s.note = "this build reaches NVIDIA cards through Vulkan only; `make CUDA=1` builds ggml with CUDA";
  return s;
}

/// The device that is always there, as it is without options. Nothing is started for it.
DeviceSummary simulated() {
  DeviceSummary s;
  s.name = "sim";
  s.description = "a device that does not exist, for tests and for looking at plans";
  s.kind = kind_name(DeviceKind::simulated);
  s.total = s.free = 64 * GiB;
  s.alignment = 32;
  s.max_buffer = GiB;
  s.note = "opened as sim:memory=24MiB,link=200MB/s,compute=50GFLOPS and the like (docs/simulated-device.md)";
  return s;
}

Result<DeviceMeasurement> measure(Device& device, const DevicesOptions& options) {
  const auto tell = [&](const char* doing) {
    if (options.progress) options.progress(device.info().name, doing);
  };
  DeviceMeasurement m;
  tell("weight types");
  const WeightTypes types = weight_types(device);
  m.raw_types = types.raw;
  m.by_tensor_types = types.by_tensor;
  m.unsupported_types = types.unsupported;
  tell("copies and products");
  SLUICE_ASSIGN(const MeasuredRates rates, measure_rates(device, options.cancel));
  m.to_device = rates.to_device;
  m.to_device_pinned = rates.to_device_pinned;
  m.from_device = rates.from_device;
  m.from_device_pinned = rates.from_device_pinned;
  m.latency_s = rates.latency_s;
  m.flops_per_s = rates.flops_per_s;
  m.overlap = rates.overlap;
  tell("largest buffer");
  const LargestBuffer largest = find_largest_buffer(device, askable(device));
  m.largest_buffer = largest.size;
  m.largest_at_least = largest.at_least;
  return m;
}

Result<DeviceSummary> named(const DevicesOptions& options) {
  SLUICE_ASSIGN(const auto device, open_device(options.device));
  device->set_log(options.log);
  DeviceSummary s = summary_of(device->info(), device->memory());
  // What a simulated device does is in its name.
  const DeviceCache cache(device->info().kind == DeviceKind::simulated ? std::string{} : options.cache_folder);
  if (!options.measure) {
    s.measured = cache.find(device->info());
    return s;
  }
  SLUICE_ASSIGN(s.measured, measure(*device, options));
  if (auto stored = cache.store(device->info(), *s.measured); !stored)
    options.log(LogLevel::warning, "what was measured is not kept: {}", stored.error().message);
  return s;
}

}  // namespace

Result<std::vector<DeviceSummary>> devices(const DevicesOptions& options) {
  std::vector<DeviceSummary> all;
  if (!options.device.empty()) {
    SLUICE_ASSIGN(all.emplace_back(), named(options));
    return all;
  }
  const DeviceCache cache(options.cache_folder);
  for (const auto& listing : list_devices()) {
    DeviceSummary s = summary_of(listing.info, listing.memory);
    if (options.measure) {
      DevicesOptions one = options;
      one.device = s.name;
      auto measured = named(one);
      if (!measured && measured.error().code == Code::cancelled) return fail(std::move(measured).error());
      if (measured)
        s = *std::move(measured);
      else
        s.note += fmt::format("{}could not be measured: {}", s.note.empty() ? "" : "; ", measured.error().message);
    } else {
      s.measured = cache.find(listing.info);
    }
    all.push_back(std::move(s));
  }
  all.push_back(simulated());
  return all;
}

std::vector<DeviceSummary> devices() { return devices(DevicesOptions{}).value_or(std::vector<DeviceSummary>{}); }

Result<DiskRate> measure_disk(const std::string& path) {
  SLUICE_ASSIGN(const ReadRate rate, time_reading(path, kMostRead, kMostReadSeconds));
  return DiskRate{path, rate.bytes, round_rate(static_cast<double>(rate.bytes) / std::max(rate.seconds, 1e-9))};
}

}  // namespace sluice
