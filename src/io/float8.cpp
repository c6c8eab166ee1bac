#include "io/float8.h"

#include <cmath>
#include <limits>

namespace sluice {
namespace {

float decode(int code, int mantissa_bits, int bias, bool ieee) {
  const int exponent_bits = 7 - mantissa_bits;
  const int top = (1 << exponent_bits) - 1;
  const int full = (1 << mantissa_bits) - 1;
  const int exponent = (code >> mantissa_bits) & top;
  const int mantissa = code & full;
  float value = 0;
  if (exponent == top && (ieee ? mantissa != 0 : mantissa == full)) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == top && ieee) {
    value = std::numeric_limits<float>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(static_cast<float>(mantissa + full + 1), exponent - bias - mantissa_bits);
  }
  return code & 0x80 ? -value : value;
}

std::array<float, 256> table(int mantissa_bits, int bias, bool ieee) {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) values[static_cast<std::size_t>(code)] = decode(code, mantissa_bits, bias, ieee);
  return values;
}

}  // namespace

const std::array<float, 256>& float8_e4m3_values() {
  static const auto values = table(3, 7, false);
  return values;
}

const std::array<float, 256>& float8_e5m2_values() {
  static const auto values = table(2, 15, true);
  return values;
}

}  // namespace sluice
