#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace sluice {

/// A device as users write it: "sim:memory=24MiB,poison=1" is base "sim" with two options, in the order given. Simulated
/// devices, of which there may be several, can be told apart by a label: "sim:a,memory=24MiB".
struct DeviceName {
  std::string base, label;
  std::vector<std::pair<std::string, std::string>> options;
  /// Without its options: "cpu", "sim:a".
  std::string plain() const { return label.empty() ? base : base + ":" + label; }
};

/// Splits a name. Errors: invalid_argument for an empty base, an option without '=' or one given twice (which it names).
Result<DeviceName> parse_device_name(std::string_view text);

/// "vulkan0,sim:a,memory=24MiB,cpu:threads=2" → {"vulkan0", "sim:a,memory=24MiB", "cpu:threads=2"}: a comma starts the next
/// device, unless an option (name=value) follows it. Errors: invalid_argument for a device without a name.
Result<std::vector<std::string>> split_device_list(std::string_view text);

/// "200MB/s", "10GiB/s" → bytes per second. Errors: invalid_argument, also for 0.
Result<double> parse_link_rate(std::string_view text);
/// "50GFLOPS", "1.5TFLOPS" → operations per second. Errors: invalid_argument, also for 0.
Result<double> parse_flops(std::string_view text);
/// "20us", "1.5ms", "2s", "800ns" → seconds, at most 1000. Errors: invalid_argument.
Result<double> parse_duration(std::string_view text);
/// A whole number in [least, most]. Errors: invalid_argument.
Result<std::uint64_t> parse_count(std::string_view text, std::uint64_t least, std::uint64_t most);

/// What `parse` makes of an option's text, or its error with the option's name in front.
template <typename T>
Status read_option(const std::pair<std::string, std::string>& option, T& out, auto&& parse) {
  auto value = parse(std::string_view(option.second));
  if (!value) return fail_while("device option '" + option.first + "'", std::move(value).error());
  out = static_cast<T>(*value);
  return {};
}

}  // namespace sluice
