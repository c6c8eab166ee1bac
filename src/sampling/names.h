#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace sluice {

/// The value in `table` whose name is `name`. Errors: invalid_argument, with the valid names (and at most 40 bytes of the wrong
/// one).
template <typename T>
Result<T> parse_name(std::string_view what, std::string_view name, std::span<const std::pair<T, std::string_view>> table) {
  std::string valid;
  for (const auto& [value, text] : table) {
    if (text == name) return value;
    valid += (valid.empty() ? "" : ", ") + std::string(text);
  }
  return fail(Code::invalid_argument, fmt::format("unknown {} \"{}\": use one of {}", what, name.substr(0, 40), valid));
}

/// The name of `value` in `table`.
template <typename T>
std::string_view name_in(T value, std::span<const std::pair<T, std::string_view>> table) {
  for (const auto& [known, text] : table) {
    if (known == value) return text;
  }
  return "?";
}

}  // namespace sluice
