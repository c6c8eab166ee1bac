#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace sluice {

/// A device as users write it: "sim:memory=24MiB,poison=1" is base "sim" with two options, in the order given.
struct DeviceName {
  std::string base;
  std::vector<std::pair<std::string, std::string>> options;
};

/// Splits a name. Errors: invalid_argument for an empty base, an option without '=' or one given twice (which it names).
Result<DeviceName> parse_device_name(std::string_view text);

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
