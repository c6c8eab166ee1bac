#include "base/bytes.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cmath>
#include <limits>

namespace sluice {

bool checked_add(Bytes a, Bytes b, Bytes& out) {
  if (a > std::numeric_limits<Bytes>::max() - b) return false;
  out = a + b;
  return true;
}

bool checked_mul(Bytes a, Bytes b, Bytes& out) {
  if (b != 0 && a > std::numeric_limits<Bytes>::max() / b) return false;
  out = a * b;
  return true;
}

Result<Bytes> parse_bytes(std::string_view text) {
  const auto refuse = [&] {
    return fail(
        Code::invalid_argument,
        fmt::format("'{}' is no size: write a number with B, KiB, MiB, GiB, TiB, KB, MB, GB or TB, for example 6GiB", text));
  };
  std::size_t end = 0;
  bool point = false;
  double value = 0, scale = 1;
  Bytes whole = 0;
  for (; end < text.size(); ++end) {
    const char c = text[end];
    if (c == '.' && !point) {
      point = true;
    } else if (std::isdigit(static_cast<unsigned char>(c))) {
      const auto digit = static_cast<Bytes>(c - '0');
      if (point) {
        scale /= 10;
        value += scale * static_cast<double>(digit);
      } else if (!checked_mul(whole, 10, whole) || !checked_add(whole, digit, whole)) {
        return refuse();
      }
    } else {
      break;
    }
  }
  if (end == 0 || (end == 1 && point)) return refuse();
  std::string_view unit = text.substr(end);
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  struct Unit {
    std::string_view name;
    Bytes bytes;
  };
  static constexpr std::array<Unit, 10> kUnits{{{"", 1},
                                                {"B", 1},
                                                {"KiB", KiB},
                                                {"MiB", MiB},
                                                {"GiB", GiB},
                                                {"TiB", 1024 * GiB},
                                                {"KB", 1000},
                                                {"MB", 1000 * 1000},
                                                {"GB", 1000ull * 1000 * 1000},
                                                {"TB", 1000ull * 1000 * 1000 * 1000}}};
  for (const auto& u : kUnits) {
    if (u.name != unit) continue;
    Bytes total = 0;
    if (!checked_mul(whole, u.bytes, total)) return refuse();
    if (!checked_add(total, static_cast<Bytes>(value * static_cast<double>(u.bytes)), total)) return refuse();
    return total;
  }
  return refuse();
}

std::string format_bytes(Bytes bytes) {
  static constexpr std::array<const char*, 6> kNames{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, kNames[unit]);
}

}  // namespace sluice
