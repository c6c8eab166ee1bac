#include "device/report.h"

#include <algorithm>
#include <cctype>

#include "device/probe.h"
#include "device/registry.h"
#include "ggml-cpp.h"

namespace sluice {

DeviceUsage usage_of(const DeviceInfo& info) {
  load_backends();
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_t dev = ggml_backend_dev_get(i);
    const std::string_view name = ggml_backend_dev_name(dev);
    const auto same = [](unsigned char a, unsigned char b) { return a == std::tolower(b); };
    if (!std::ranges::equal(info.name, name, same)) continue;
    ggml_backend_dev_props props{};
    ggml_backend_dev_get_props(dev, &props);
    return {props.caps.async, props.caps.events, props.caps.host_buffer, props.caps.buffer_from_host_ptr};
  }
  return {};
}

WeightTypes weight_types(const Device& device) {
  WeightTypes types;
  for (const ggml_type type : kWeightTypes) {
    const ggml_context_ptr context{ggml_init({4 * ggml_tensor_overhead(), nullptr, true})};
    ggml_tensor* weight = ggml_new_tensor_2d(context.get(), type, 256, 16);
    ggml_tensor* product = ggml_mul_mat(context.get(), weight, ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 256, 4));
    auto& list = !device.supports(product) ? types.unsupported : device.raw_images(type) ? types.raw : types.by_tensor;
    list.emplace_back(ggml_type_name(type));
  }
  return types;
}

}  // namespace sluice
