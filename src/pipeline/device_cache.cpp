#include "pipeline/device_cache.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/atomic_file.h"
#include "io/file.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr const char* kFile = "devices.json";
constexpr Bytes kMostBytes = MiB;  // larger is not ours

json key_of(const DeviceInfo& info) {
  return {{"name", info.name},
          {"description", info.description},
          {"device_id", info.device_id},
          {"threads", info.threads},
          {"ggml", std::string(ggml_version()) + " " + ggml_commit()}};
}

json to_json(const DeviceMeasurement& m) {
  return {{"largest_buffer", m.largest_buffer},
          {"largest_at_least", m.largest_at_least},
          {"to_device", m.to_device},
          {"to_device_pinned", m.to_device_pinned},
          {"from_device", m.from_device},
          {"from_device_pinned", m.from_device_pinned},
          {"latency_s", m.latency_s},
          {"flops_per_s", m.flops_per_s},
          {"overlap", m.overlap},
          {"raw_types", m.raw_types},
          {"by_tensor_types", m.by_tensor_types},
          {"unsupported_types", m.unsupported_types}};
}

/// Throws what json throws where the shape is another.
DeviceMeasurement read(const json& j) {
  DeviceMeasurement m;
  j.at("largest_buffer").get_to(m.largest_buffer);
  j.at("largest_at_least").get_to(m.largest_at_least);
  j.at("to_device").get_to(m.to_device);
  j.at("to_device_pinned").get_to(m.to_device_pinned);
  j.at("from_device").get_to(m.from_device);
  j.at("from_device_pinned").get_to(m.from_device_pinned);
  j.at("latency_s").get_to(m.latency_s);
  j.at("flops_per_s").get_to(m.flops_per_s);
  j.at("overlap").get_to(m.overlap);
  j.at("raw_types").get_to(m.raw_types);
  j.at("by_tensor_types").get_to(m.by_tensor_types);
  j.at("unsupported_types").get_to(m.unsupported_types);
  return m;
}

/// What a device of this world may measure.
bool possible(const DeviceMeasurement& m) {
  const auto within = [](double value, double most) { return std::isfinite(value) && value >= 0 && value <= most; };
  for (const double rate : {m.to_device, m.to_device_pinned, m.from_device, m.from_device_pinned})
    if (!within(rate, 1e15)) return false;
  return within(m.flops_per_s, 1e20) && within(m.latency_s, 1000) && std::isfinite(m.overlap) && m.overlap <= 1;
}

/// The entries of the file; none where it is not ours.
json entries(const std::string& folder) {
  const auto file = system_files()->open((std::filesystem::path(folder) / kFile).string());
  if (!file || (*file)->size() == 0 || (*file)->size() > kMostBytes) return json::array();
  std::string text(static_cast<std::size_t>((*file)->size()), ' ');
  if (!(*file)->read_at(0, std::as_writable_bytes(std::span(text)))) return json::array();
  const json all = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!all.is_object() || !all.contains("format") || all["format"] != kFormat) return json::array();
  if (!all.contains("devices") || !all["devices"].is_array()) return json::array();
  return all["devices"];
}

bool is_of(const json& entry, const json& key) { return entry.is_object() && entry.contains("key") && entry["key"] == key; }

}  // namespace

std::optional<DeviceMeasurement> DeviceCache::find(const DeviceInfo& info) const {
  if (folder_.empty()) return std::nullopt;
  const json key = key_of(info);
  for (const json& entry : entries(folder_)) {
    if (!is_of(entry, key)) continue;
    try {
      if (auto m = read(entry.at("measured")); possible(m)) return m;
    } catch (const json::exception&) {
      continue;  // somebody wrote in it
    }
  }
  return std::nullopt;
}

Status DeviceCache::store(const DeviceInfo& info, const DeviceMeasurement& measurement) const {
  if (folder_.empty()) return {};
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) return fail(Code::io, folder_ + ": " + error.message());
  const json key = key_of(info);
  json kept = json::array();
  for (json& entry : entries(folder_))
    if (entry.is_object() && entry.contains("key") && !is_of(entry, key)) kept.push_back(std::move(entry));
  kept.push_back({{"key", key}, {"measured", to_json(measurement)}});
  const std::string text =
      json{{"format", kFormat}, {"devices", std::move(kept)}}.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
  return write_whole_file((std::filesystem::path(folder_) / kFile).string(), std::as_bytes(std::span(text)));
}

Device::Rates rates_of(const DeviceMeasurement& m) {
  Device::Rates rates;
  if (const double link = m.to_device_pinned > 0 ? m.to_device_pinned : m.to_device; link > 0) rates.link_bytes_per_s = link;
  if (m.latency_s > 0) rates.link_latency_s = m.latency_s;
  if (m.flops_per_s > 0) rates.flops_per_s = m.flops_per_s;
  return rates;
}

std::optional<Device::Rates> cached_rates(const DeviceInfo& info, const std::string& cache_folder) {
  const auto measured = DeviceCache(cache_folder).find(info);
  if (!measured) return std::nullopt;
  return rates_of(*measured);
}

}  // namespace sluice
