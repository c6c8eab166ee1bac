#pragma once

#include <string>
#include <string_view>

namespace sluice::golden {

/// An output's name as the sampling cases write it: first.middle.last; the middle may be empty or hold dots of its own.
struct DottedName {
  std::string first, middle, last;
};

inline DottedName split_dotted(std::string_view name) {
  const auto a = name.find('.'), z = name.rfind('.');
  if (a == std::string_view::npos) return {std::string(name), {}, {}};
  DottedName out{std::string(name.substr(0, a)), {}, std::string(name.substr(z + 1))};
  if (z > a) out.middle = name.substr(a + 1, z - a - 1);
  return out;
}

}  // namespace sluice::golden
