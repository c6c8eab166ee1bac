#include "io/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/utf8.h"
#include "io/float8.h"

namespace sluice {
namespace {

/// Elements per round: the scratch stays in the first-level cache. Rounded to whole blocks.
constexpr std::int64_t kRound = 2048;

template <typename T>
T load(const std::byte* from, std::size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

/// `value` in f32, rounded to odd: towards zero, with the last bit set when anything was lost. Rounding that once more to a
/// type with at most 22 bits of mantissa gives what one rounding of `value` gives. Source: Boldo & Melquiond, "Emulation of FMA
/// and correctly rounded sums: proved algorithms using rounding to odd", 2008.
float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

/// The same from 64 bits of integer to the 53 of a double.
double round_to_odd(std::int64_t value) {
  const bool negative = value < 0;
  std::uint64_t size = negative ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  if (const int lost = static_cast<int>(std::bit_width(size)) - 53; lost > 0) {
    const std::uint64_t mask = (std::uint64_t{1} << lost) - 1;
    size = (size & mask) != 0 ? (size & ~mask) | (mask + 1) : size;
  }
  return negative ? -static_cast<double>(size) : static_cast<double>(size);
}

bool is_float_target(ggml_type to) { return to == GGML_TYPE_F32 || to == GGML_TYPE_F16 || to == GGML_TYPE_BF16; }

/// Types with more bits than f32's mantissa: to double, and from there with one rounding to the target.
float narrow(double value, ggml_type to) { return to == GGML_TYPE_F32 ? static_cast<float>(value) : round_to_odd(value); }

/// `n` elements to f32; to round-to-odd f32 where the source is wider than f32 and the target narrower.
void to_f32(const TensorInfo& info, const std::byte* from, std::span<float> out, ggml_type to) {
  const auto each = [&](auto&& value) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = value(i);
  };
  switch (info.dtype) {
    case DType::f64: return each([&](std::size_t i) { return narrow(load<double>(from, i), to); });
    case DType::i64: return each([&](std::size_t i) { return narrow(round_to_odd(load<std::int64_t>(from, i)), to); });
    case DType::i32: return each([&](std::size_t i) { return narrow(load<std::int32_t>(from, i), to); });
    case DType::i16: return each([&](std::size_t i) { return static_cast<float>(load<std::int16_t>(from, i)); });
    case DType::i8: return each([&](std::size_t i) { return static_cast<float>(load<std::int8_t>(from, i)); });
    case DType::u8: return each([&](std::size_t i) { return static_cast<float>(load<std::uint8_t>(from, i)); });
    case DType::boolean: return each([&](std::size_t i) { return load<std::uint8_t>(from, i) != 0 ? 1.0f : 0.0f; });
    case DType::f8_e4m3: return each([&](std::size_t i) { return float8_e4m3_values()[load<std::uint8_t>(from, i)]; });
    case DType::f8_e5m2: return each([&](std::size_t i) { return float8_e5m2_values()[load<std::uint8_t>(from, i)]; });
    case DType::f32: std::memcpy(out.data(), from, out.size_bytes()); return;
    case DType::f16: {
      std::vector<ggml_fp16_t> aligned(out.size());
      std::memcpy(aligned.data(), from, out.size() * sizeof(ggml_fp16_t));
      ggml_fp16_to_fp32_row(aligned.data(), out.data(), static_cast<std::int64_t>(out.size()));
      return;
    }
    case DType::bf16:
      return each(
          [&](std::size_t i) { return std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(from, i)) << 16); });
    case DType::quantised: {
      const Bytes bytes =
          static_cast<Bytes>(out.size()) / static_cast<Bytes>(ggml_blck_size(info.ggml)) * ggml_type_size(info.ggml);
      std::vector<std::byte> aligned(from, from + bytes);
      ggml_get_type_traits(info.ggml)->to_float(aligned.data(), out.data(), static_cast<std::int64_t>(out.size()));
      return;
    }
  }
}

void from_f32(std::span<const float> values, ggml_type to, std::byte* out) {
  const auto n = static_cast<std::int64_t>(values.size());
  if (to == GGML_TYPE_F32) {
    std::memcpy(out, values.data(), values.size_bytes());
  } else if (to == GGML_TYPE_F16) {
    std::vector<ggml_fp16_t> halves(values.size());
    ggml_fp32_to_fp16_row(values.data(), halves.data(), n);
    std::memcpy(out, halves.data(), halves.size() * sizeof(ggml_fp16_t));
  } else {
    std::vector<ggml_bf16_t> halves(values.size());
    ggml_fp32_to_bf16_row(values.data(), halves.data(), n);
    std::memcpy(out, halves.data(), halves.size() * sizeof(ggml_bf16_t));
  }
}

bool known_type(ggml_type type) { return type >= 0 && type < GGML_TYPE_COUNT && ggml_type_size(type) > 0; }

}  // namespace

bool convertible(const TensorInfo& info, ggml_type to) {
  if (!known_type(to)) return false;
  if (info.ggml == to) return true;
  if (!is_float_target(to)) return false;
  if (info.dtype != DType::quantised) return true;
  return known_type(info.ggml) && ggml_get_type_traits(info.ggml)->to_float != nullptr;
}

Status convert(const TensorInfo& info, std::span<const std::byte> from, std::int64_t count, ggml_type to,
               std::span<std::byte> out) {
  const auto source_name =
      info.dtype == DType::quantised && known_type(info.ggml) ? ggml_type_name(info.ggml) : dtype_name(info.dtype);
  if (!convertible(info, to))
    return fail(Code::unsupported, fmt::format("tensor '{}': {} cannot be converted to {}", printable(info.name), source_name,
                                               known_type(to) ? ggml_type_name(to) : "an unknown type"));
  const bool blocks = info.dtype == DType::quantised;
  const std::int64_t per_unit = blocks ? ggml_blck_size(info.ggml) : 1;
  const Bytes unit = blocks ? ggml_type_size(info.ggml) : dtype_size(info.dtype);
  const std::int64_t per_target = ggml_blck_size(to);
  Bytes bytes_in = 0, bytes_out = 0;
  if (count < 0 || count % per_unit != 0 || count % per_target != 0 ||
      !checked_mul(static_cast<Bytes>(count / per_unit), unit, bytes_in) ||
      !checked_mul(static_cast<Bytes>(count / per_target), ggml_type_size(to), bytes_out) || from.size() != bytes_in ||
      out.size() != bytes_out)
    return fail(Code::invalid_argument,
                fmt::format("tensor '{}': {} elements of {} to {} do not match {} bytes in and {} bytes out",
                            printable(info.name), count, source_name, ggml_type_name(to), from.size(), out.size()),
                bytes_out, out.size());
  if (info.ggml == to) {
    if (!from.empty()) std::memcpy(out.data(), from.data(), from.size());
    return {};
  }
  const std::int64_t round = std::max<std::int64_t>(1, kRound / per_unit) * per_unit;
  std::vector<float> scratch(static_cast<std::size_t>(std::min(round, count)));
  for (std::int64_t done = 0; done < count; done += round) {
    const auto n = static_cast<std::size_t>(std::min(round, count - done));
    const auto values = std::span(scratch).first(n);
    to_f32(info, from.data() + static_cast<Bytes>(done / per_unit) * unit, values, to);
    from_f32(values, to, out.data() + static_cast<Bytes>(done) * ggml_type_size(to));
  }
  return {};
}

}  // namespace sluice
