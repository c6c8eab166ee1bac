#include "device/device.h"
#include "sluice/engine.h"

namespace sluice {
namespace {

const char* kind_name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::gpu: return "gpu";
    case DeviceKind::integrated: return "integrated";
    case DeviceKind::simulated: return "simulated";
  }
  return "";
}

}  // namespace

std::vector<DeviceSummary> devices() {
  std::vector<DeviceSummary> all;
  bool nvidia_by_vulkan = false;
  for (const auto& listing : list_devices()) {
    DeviceSummary s;
    s.name = listing.info.name;
    s.description = listing.info.description;
    s.kind = kind_name(listing.info.kind);
    s.total = listing.memory.total;
    s.free = listing.memory.free;
    s.memory_known = listing.memory.known;
    s.alignment = listing.info.alignment;
    s.max_buffer = listing.info.max_buffer;
    nvidia_by_vulkan = s.name.starts_with("vulkan") && s.description.find("NVIDIA") != std::string::npos;
    if (nvidia_by_vulkan) s.note = "this build reaches NVIDIA cards through Vulkan only; `make CUDA=1` builds ggml with CUDA";
    all.push_back(std::move(s));
  }
  return all;
}

}  // namespace sluice
