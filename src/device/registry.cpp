#include "device/registry.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>
#include <mutex>

#include "device/device.h"
#include "device/device_name.h"
#include "device/ggml_device.h"
#include "device/sim_device.h"

namespace sluice {
namespace {

bool usable(ggml_backend_dev_t dev) {
  switch (ggml_backend_dev_type(dev)) {
    case GGML_BACKEND_DEVICE_TYPE_CPU:
    case GGML_BACKEND_DEVICE_TYPE_GPU:
    case GGML_BACKEND_DEVICE_TYPE_IGPU: return true;
    default: return false;
  }
}

std::vector<ggml_backend_dev_t> usable_devices() {
  load_backends();
  std::vector<ggml_backend_dev_t> devices;
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i)
    if (ggml_backend_dev_t dev = ggml_backend_dev_get(i); usable(dev)) devices.push_back(dev);
  return devices;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// "cpu" and "gpu" are the first device of that kind, any other name is the registry's, whatever its case.
ggml_backend_dev_t find_device(const std::string& name) {
  const auto devices = usable_devices();
  const auto found =
      std::ranges::find_if(devices, [&](ggml_backend_dev_t dev) { return lower(ggml_backend_dev_name(dev)) == name; });
  if (found != devices.end()) return *found;
  for (ggml_backend_dev_t dev : devices) {
    const bool cpu = ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
    if ((name == "cpu" && cpu) || (name == "gpu" && !cpu)) return dev;
  }
  return nullptr;
}

/// One ledger per physical device and process, as long as anything uses it. Without an id, a name is the identity.
std::shared_ptr<Ledger> ledger_of(const DeviceInfo& info) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Ledger>> ledgers;
  const std::string key = info.host_memory ? "host" : info.device_id.empty() ? "name " + info.name : "id " + info.device_id;
  std::lock_guard lock(mutex);
  auto& known = ledgers[key];
  auto ledger = known.lock();
  if (!ledger) known = ledger = std::make_shared<Ledger>();
  return ledger;
}

Result<GgmlOptions> read_options(const DeviceName& name) {
  GgmlOptions options;
  for (const auto& option : name.options) {
    if (option.first == "threads") {
      SLUICE_TRY(
          read_option(option, options.threads, [](std::string_view t) { return parse_count(t, 1, GGML_MAX_N_THREADS); }));
    } else if (option.first == "poll") {
      SLUICE_TRY(read_option(option, options.poll, [](std::string_view t) { return parse_count(t, 0, 100); }));
    } else if (option.first == "link") {
      SLUICE_TRY(read_option(option, options.link_bytes_per_s.emplace(), parse_link_rate));
    } else if (option.first == "latency") {
      SLUICE_TRY(read_option(option, options.link_latency_s.emplace(), parse_duration));
    } else if (option.first == "compute") {
      SLUICE_TRY(read_option(option, options.flops_per_s.emplace(), parse_flops));
    } else {
      return fail(Code::invalid_argument, "device '" + name.base + "' has no option '" + option.first +
                                              "'; there are threads, poll, link, latency and compute");
    }
  }
  return options;
}

Result<std::unique_ptr<Device>> open_ggml(const DeviceName& name) {
  ggml_backend_dev_t dev = find_device(name.base);
  if (!dev) {
    std::string known;
    for (ggml_backend_dev_t other : usable_devices()) known += lower(ggml_backend_dev_name(other)) + ", ";
    return fail(Code::not_found, "there is no device '" + name.base + "'; there are " + known + "sim");
  }
  SLUICE_ASSIGN(const GgmlOptions options, read_options(name));
  SLUICE_ASSIGN(auto device, GgmlDevice::open(dev, options, ledger_of(GgmlDevice::describe(dev))));
  return device;
}

}  // namespace

void load_backends() {
  static std::once_flag once;
  std::call_once(once, [] {
    // ggml's log is one for the whole process and starts while no engine is there to listen: its news (which plugin was loaded)
    // go nowhere, and what it says before it gives up stays where it would be without us.
    ggml_log_set(
        [](ggml_log_level level, const char* text, void*) {
          if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
    ggml_backend_load_all();
  });
}

Result<std::unique_ptr<Device>> open_device(const std::string& text) {
  SLUICE_ASSIGN(DeviceName name, parse_device_name(text));
  name.base = lower(name.base);
  if (name.base != "sim") return open_ggml(name);
  SLUICE_ASSIGN(const SimOptions options, parse_sim_options(name));
  SLUICE_ASSIGN(auto device, SimDevice::open(options));
  return device;
}

std::string default_device() {
  const DeviceListing* best = nullptr;
  const auto all = list_devices();
  const auto rank = [](const DeviceListing& l) {
    const bool software = l.info.kind == DeviceKind::gpu && l.info.host_memory;  // slower than the CPU itself
    const int kind = software ? -1 : l.info.kind == DeviceKind::gpu ? 2 : l.info.kind == DeviceKind::integrated ? 1 : 0;
    return std::pair(kind, l.memory.total);
  };
  for (const auto& listing : all)
    if (!best || rank(listing) > rank(*best)) best = &listing;
  return best ? best->info.name : "cpu";
}

std::vector<DeviceListing> list_devices() {
  std::vector<DeviceListing> listing;
  for (ggml_backend_dev_t dev : usable_devices()) listing.push_back({GgmlDevice::describe(dev), GgmlDevice::memory_of(dev, 0)});
  return listing;
}

}  // namespace sluice
