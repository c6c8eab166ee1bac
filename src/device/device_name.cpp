#include "device/device_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace sluice {
namespace {

/// A positive decimal number followed by one of `units`.
Result<double> parse_scaled(std::string_view text, std::string_view example,
                            std::initializer_list<std::pair<std::string_view, double>> units, bool zero_allowed) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (error == std::errc{} && std::isfinite(number) && (number > 0 || (zero_allowed && number == 0)))
    for (const auto& [name, factor] : units)
      if (unit == name) return number * factor;
  return fail(Code::invalid_argument, fmt::format("'{}' is not understood; write it like {}", text, example));
}

}  // namespace

Result<DeviceName> parse_device_name(std::string_view text) {
  const auto colon = text.find(':');
  DeviceName name{.base = std::string(text.substr(0, colon)), .label = {}, .options = {}};
  if (name.base.empty())
    return fail(Code::invalid_argument, fmt::format("device '{}' has no name; write cpu, or see sluice devices", text));
  if (colon == std::string_view::npos) return name;
  std::string_view rest = text.substr(colon + 1);
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    const auto equals = part.find('=');
    if (equals == std::string_view::npos && !part.empty() && name.base == "sim" && name.label.empty() && name.options.empty()) {
      name.label = part;
      continue;
    }
    if (equals == std::string_view::npos || equals == 0)
      return fail(Code::invalid_argument, fmt::format("device option '{}' has no value; write name=value", part));
    std::string key(part.substr(0, equals));
    if (std::ranges::any_of(name.options, [&](const auto& option) { return option.first == key; }))
      return fail(Code::invalid_argument, fmt::format("device option '{}' is given twice", key));
    name.options.emplace_back(std::move(key), std::string(part.substr(equals + 1)));
  }
  return name;
}

Result<std::vector<std::string>> split_device_list(std::string_view text) {
  std::vector<std::string> devices;
  for (std::string_view rest = text;;) {
    const auto comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const auto equals = part.find('='), colon = part.find(':');
    const bool option = equals != std::string_view::npos && (colon == std::string_view::npos || colon > equals);
    if (part.empty() || (option && devices.empty()))
      return fail(Code::invalid_argument,
                  fmt::format("device list '{}': a device has no name; write it like vulkan0,cpu", text));
    if (option)
      devices.back() += (devices.back().find(':') == std::string::npos ? ":" : ",") + std::string(part);
    else
      devices.emplace_back(part);
    if (comma == std::string_view::npos) return devices;
    rest.remove_prefix(comma + 1);
  }
}

Result<double> parse_link_rate(std::string_view text) {
  const auto invalid = [&] {
    return fail(Code::invalid_argument, fmt::format("'{}' is not understood; write it like 200MB/s", text));
  };
  if (!text.ends_with("/s")) return invalid();
  const auto bytes = parse_bytes(text.substr(0, text.size() - 2));
  if (!bytes || *bytes == 0) return invalid();
  return static_cast<double>(*bytes);
}

Result<double> parse_flops(std::string_view text) {
  return parse_scaled(text, "50GFLOPS",
                      {{"FLOPS", 1}, {"KFLOPS", 1e3}, {"MFLOPS", 1e6}, {"GFLOPS", 1e9}, {"TFLOPS", 1e12}, {"PFLOPS", 1e15}},
                      false);
}

Result<double> parse_duration(std::string_view text) {
  SLUICE_ASSIGN(const double seconds, parse_scaled(text, "20us", {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}, true));
  if (seconds > 1000) return fail(Code::invalid_argument, fmt::format("'{}' is longer than 1000s", text));
  return seconds;
}

Result<std::uint64_t> parse_count(std::string_view text, std::uint64_t least, std::uint64_t most) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most)
    return fail(Code::invalid_argument, fmt::format("'{}' is not a whole number from {} to {}", text, least, most));
  return value;
}

}  // namespace sluice
