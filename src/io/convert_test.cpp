#include "io/convert.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "io/float8.h"

using namespace sluice;

namespace {

TensorInfo info_of(DType dtype, ggml_type quantised = GGML_TYPE_COUNT) {
  TensorInfo info;
  info.name = "t";
  info.dtype = dtype;
  info.ggml = dtype == DType::quantised ? quantised : dtype_to_ggml(dtype).value_or(GGML_TYPE_COUNT);
  return info;
}

template <typename To, typename From>
std::vector<To> converted(DType dtype, const std::vector<From>& from, ggml_type to) {
  // One byte off, so that nothing relies on alignment.
  std::vector<std::byte> in(from.size() * sizeof(From) + 1), out(from.size() * sizeof(To) + 1);
  std::memcpy(in.data() + 1, from.data(), from.size() * sizeof(From));
  const auto status =
      convert(info_of(dtype), std::span(in).subspan(1), static_cast<std::int64_t>(from.size()), to, std::span(out).subspan(1));
  REQUIRE_MESSAGE(status, status.error().message);
  std::vector<To> result(from.size());
  std::memcpy(result.data(), out.data() + 1, result.size() * sizeof(To));
  return result;
}

/// Value of a small float by its definition: sign, exponent, mantissa.
double value_of(unsigned bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const double sign = (bits >> (exponent_bits + mantissa_bits)) & 1 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits),
                           exponent - bias - mantissa_bits);  // infinity's code: the next power of two
}

/// Whether `got` is one of the closest codes to `value`, and the even one in a tie. Codes of one sign are ordered like their
/// values, and infinity's code stands where the next finite value would be, as IEEE 754 rounds.
bool is_nearest(double value, unsigned got, int exponent_bits, int mantissa_bits) {
  const unsigned sign = std::signbit(value) ? 1u << (exponent_bits + mantissa_bits) : 0;
  const unsigned infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  if ((got & ~infinity & ~((1u << mantissa_bits) - 1)) != sign) return false;
  const unsigned code = got & ~sign;
  const double size = std::fabs(value);
  const auto distance = [&](unsigned c) { return std::fabs(value_of(c, exponent_bits, mantissa_bits) - size); };
  if (code > infinity) return false;
  if (code == infinity && size >= value_of(infinity, exponent_bits, mantissa_bits)) return true;
  for (const unsigned other : {code - 1, code + 1}) {
    if (other > infinity) continue;  // also 0 - 1
    if (distance(other) < distance(code)) return false;
    if (distance(other) == distance(code) && (code & 1) != 0) return false;
  }
  return true;
}

std::vector<double> awkward_doubles() {
  std::vector<double> values{0.0,
                             -0.0,
                             1.0,
                             -1.0,
                             65504,
                             65519.999999,
                             65520,
                             65520.0000001,
                             65536,
                             -1e9,
                             5.9604644775390625e-8,
                             2.98023223876953125e-8,
                             2.9802322387695313e-8 * (1 + 1e-12),
                             1e-300,
                             4.9e-324,
                             1e308,
                             3.4028234663852886e38,
                             3.4028235677973366e38,
                             3.39e38};
  // Just off the midpoints between two f16 and bf16 values, by less than f32 can see: where rounding twice goes wrong.
  for (int i = 0; i < 2000; ++i) {
    const double f16_mid = 1 + (2 * i + 1) / 2048.0, bf16_mid = 1 + (2 * (i % 128) + 1) / 256.0;
    for (const double off : {-1e-15, 0.0, 1e-15})
      values.insert(values.end(), {f16_mid * (1 + off), -f16_mid * (1 + off), bf16_mid * (1 + off), 1e-5 * f16_mid});
  }
  std::mt19937_64 rng(3);
  for (int i = 0; i < 20'000; ++i)
    values.push_back(std::ldexp(static_cast<double>(rng() >> 11) / (1ull << 53), static_cast<int>(rng() % 60) - 40));
  return values;
}

}  // namespace

TEST_CASE("float8: all 256 codes of both formats, by the definition") {
  for (unsigned code = 0; code < 256; ++code) {
    CAPTURE(code);
    const float e4m3 = float8_e4m3_values()[code], e5m2 = float8_e5m2_values()[code];
    if ((code & 0x7F) == 0x7F) {
      CHECK(std::isnan(e4m3));
    } else {
      CHECK(static_cast<double>(e4m3) == value_of(code, 4, 3));
      CHECK(std::signbit(e4m3) == (code >= 128));
    }
    if ((code & 0x7F) > 0x7C) {
      CHECK(std::isnan(e5m2));
    } else if ((code & 0x7F) == 0x7C) {
      CHECK(e5m2 == (code >= 128 ? -1 : 1) * std::numeric_limits<float>::infinity());
    } else {
      CHECK(static_cast<double>(e5m2) == value_of(code, 5, 2));
    }
  }
  CHECK(float8_e4m3_values()[0x7E] == 448);
  CHECK(float8_e5m2_values()[0x7B] == 57344);
}

TEST_CASE("convert: fp8 codes survive to f16, bf16 and f32 exactly") {
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::uint8_t>(i);
  for (const DType dtype : {DType::f8_e4m3, DType::f8_e5m2}) {
    const auto& table = dtype == DType::f8_e4m3 ? float8_e4m3_values() : float8_e5m2_values();
    const auto wide = converted<float>(dtype, codes, GGML_TYPE_F32);
    const auto half = converted<std::uint16_t>(dtype, codes, GGML_TYPE_F16);
    const auto brain = converted<std::uint16_t>(dtype, codes, GGML_TYPE_BF16);
    for (std::size_t i = 0; i < 256; ++i) {
      CAPTURE(i);
      const float as_half = ggml_fp16_to_fp32(half[i]),
                  as_brain = std::bit_cast<float>(static_cast<std::uint32_t>(brain[i]) << 16);
      if (std::isnan(table[i])) {
        CHECK(std::isnan(wide[i]));
        CHECK(std::isnan(as_half));
        CHECK(std::isnan(as_brain));
      } else {
        CHECK(wide[i] == table[i]);
        CHECK(as_half == table[i]);
        CHECK(as_brain == table[i]);
      }
    }
  }
}

TEST_CASE("convert: f64 is rounded once, to nearest even") {
  const auto values = awkward_doubles();
  const auto wide = converted<float>(DType::f64, values, GGML_TYPE_F32);
  const auto half = converted<std::uint16_t>(DType::f64, values, GGML_TYPE_F16);
  const auto brain = converted<std::uint16_t>(DType::f64, values, GGML_TYPE_BF16);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (wide[i] != static_cast<float>(values[i])) FAIL_CHECK("f32 of ", values[i]);
    if (!is_nearest(values[i], half[i], 5, 10)) FAIL_CHECK("f16 of ", values[i], " is ", half[i]);
    if (!is_nearest(values[i], brain[i], 8, 7)) FAIL_CHECK("bf16 of ", values[i], " is ", brain[i]);
  }
  // The checker itself can fail.
  CHECK_FALSE(is_nearest(1.0, 0x3C01, 5, 10));
  CHECK_FALSE(is_nearest(65520, 0x7BFF, 5, 10));
}

TEST_CASE("convert: whole numbers are rounded once, also from 64 bits") {
  std::vector<std::int64_t> values{0,
                                   -1,
                                   2049,
                                   2051,
                                   65519,
                                   65520,
                                   -65520,
                                   std::numeric_limits<std::int64_t>::max(),
                                   std::numeric_limits<std::int64_t>::min(),
                                   (1ll << 62) + (1ll << 54),
                                   (1ll << 62) + (1ll << 54) + 1,
                                   (1ll << 62) + (1ll << 54) - 1};
  std::mt19937_64 rng(5);
  for (int i = 0; i < 20'000; ++i) values.push_back(static_cast<std::int64_t>(rng()) >> (rng() % 64));
  const auto wide = converted<float>(DType::i64, values, GGML_TYPE_F32);
  const auto half = converted<std::uint16_t>(DType::i64, values, GGML_TYPE_F16);
  const auto brain = converted<std::uint16_t>(DType::i64, values, GGML_TYPE_BF16);
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(values[i]);
    if (wide[i] != static_cast<float>(values[i])) FAIL_CHECK("f32");
    if (std::llabs(values[i] / 2) < (1ll << 51) && !is_nearest(static_cast<double>(values[i]), half[i], 5, 10))
      FAIL_CHECK("f16");
    if (std::llabs(values[i] / 2) < (1ll << 51) && !is_nearest(static_cast<double>(values[i]), brain[i], 8, 7))
      FAIL_CHECK("bf16");
  }
  // 2^62 + 2^54 is half-way between two bf16 values; one more or less must be seen.
  CHECK(brain[9] == 0x5E80);
  CHECK(brain[10] == 0x5E81);
  CHECK(brain[11] == 0x5E80);
  CHECK(converted<float>(DType::i32, std::vector<std::int32_t>{16777217, -3}, GGML_TYPE_F32) ==
        std::vector<float>{16777216, -3});
  CHECK(converted<float>(DType::i16, std::vector<std::int16_t>{-32768, 7}, GGML_TYPE_F32) == std::vector<float>{-32768, 7});
  CHECK(converted<float>(DType::i8, std::vector<std::int8_t>{-128, 127}, GGML_TYPE_F32) == std::vector<float>{-128, 127});
  CHECK(converted<float>(DType::u8, std::vector<std::uint8_t>{255, 0}, GGML_TYPE_F32) == std::vector<float>{255, 0});
  CHECK(converted<float>(DType::boolean, std::vector<std::uint8_t>{2, 0}, GGML_TYPE_F32) == std::vector<float>{1, 0});
}

TEST_CASE("convert: all f16 codes and all bf16 codes go to f32 and back unchanged") {
  std::vector<std::uint16_t> codes(65536);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
  for (const auto& [dtype, type, exponent_bits] :
       {std::tuple{DType::f16, GGML_TYPE_F16, 5}, std::tuple{DType::bf16, GGML_TYPE_BF16, 8}}) {
    const auto wide = converted<float>(dtype, codes, GGML_TYPE_F32);
    const auto back = converted<std::uint16_t>(DType::f32, wide, type);
    const unsigned infinity = 0x7FFFu & ~((1u << (15 - exponent_bits)) - 1);
    for (unsigned code = 0; code < codes.size(); ++code) {
      if ((code & 0x7FFF) > infinity) {
        if (!std::isnan(wide[code]) || (back[code] & 0x7FFF) <= infinity) FAIL_CHECK("NaN ", code);
      } else if ((code & 0x7FFF) == infinity) {
        if (!std::isinf(wide[code]) || back[code] != code) FAIL_CHECK("infinity ", code);
      } else if (static_cast<double>(wide[code]) != value_of(code, exponent_bits, 15 - exponent_bits) || back[code] != code) {
        FAIL_CHECK("code ", code);
      }
    }
  }
}

TEST_CASE("convert: f32 to the halves rounds to nearest even; beyond the range is infinity; NaN stays") {
  std::vector<float> values{65519.996f,
                            65520,
                            -1e9f,
                            1e-8f,
                            3.4e38f,
                            std::numeric_limits<float>::denorm_min(),
                            std::numeric_limits<float>::min() / 2};
  std::mt19937 rng(11);
  for (int i = 0; i < 50'000; ++i) {
    const auto v = std::bit_cast<float>(static_cast<std::uint32_t>(rng()));
    if (std::isfinite(v)) values.push_back(v);
  }
  const auto half = converted<std::uint16_t>(DType::f32, values, GGML_TYPE_F16);
  const auto brain = converted<std::uint16_t>(DType::f32, values, GGML_TYPE_BF16);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!is_nearest(values[i], half[i], 5, 10)) FAIL_CHECK("f16 of ", values[i]);
    if (!is_nearest(values[i], brain[i], 8, 7)) FAIL_CHECK("bf16 of ", values[i]);
  }
  const std::vector<double> nan{std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()};
  CHECK((converted<std::uint16_t>(DType::f64, nan, GGML_TYPE_F16)[0] & 0x7FFF) > 0x7C00);
  CHECK((converted<std::uint16_t>(DType::f64, nan, GGML_TYPE_BF16)[0] & 0x7FFF) > 0x7F80);
  CHECK(converted<std::uint16_t>(DType::f64, nan, GGML_TYPE_F16)[1] == 0xFC00);
}

TEST_CASE("convert: identity copies; block types in several rounds equal ggml in one; the rest is refused") {
  std::mt19937 rng(2);
  const std::int64_t count = 32 * 1000;
  const TensorInfo q8 = info_of(DType::quantised, GGML_TYPE_Q8_0);
  const Bytes size = static_cast<Bytes>(count) / 32 * ggml_type_size(GGML_TYPE_Q8_0);
  std::vector<std::byte> blocks(size), copy(size);
  for (auto& b : blocks) b = static_cast<std::byte>(rng() % 64);  // finite scales
  REQUIRE(convert(q8, blocks, count, GGML_TYPE_Q8_0, copy));
  CHECK(copy == blocks);
  std::vector<float> want(static_cast<std::size_t>(count)), got(want.size());
  ggml_get_type_traits(GGML_TYPE_Q8_0)->to_float(blocks.data(), want.data(), count);
  REQUIRE(convert(q8, blocks, count, GGML_TYPE_F32, std::as_writable_bytes(std::span(got))));
  CHECK(std::memcmp(want.data(), got.data(), want.size() * 4) == 0);

  CHECK(convert(q8, blocks, count, GGML_TYPE_Q4_0, copy).error().code == Code::unsupported);
  CHECK(convert(q8, blocks, count - 1, GGML_TYPE_F32, std::as_writable_bytes(std::span(got))).error().code ==
        Code::invalid_argument);
  CHECK(convert(q8, blocks, count, GGML_TYPE_F32, copy).error().code == Code::invalid_argument);
  CHECK(convert(info_of(DType::f32), {}, -1, GGML_TYPE_F16, {}).error().code == Code::invalid_argument);
  CHECK(convert(info_of(DType::f32), {}, 0, GGML_TYPE_F16, {}));
  CHECK_FALSE(convertible(info_of(DType::f32), GGML_TYPE_I32));
  CHECK_FALSE(convertible(info_of(DType::f32), GGML_TYPE_COUNT));
  CHECK_FALSE(convertible(info_of(DType::f32), static_cast<ggml_type>(4)));
  CHECK_FALSE(convertible(info_of(DType::u8), GGML_TYPE_I8));
  CHECK(convertible(info_of(DType::i64), GGML_TYPE_I64));
}

TEST_CASE("convert: every block type ggml can read decodes random blocks without trouble") {
  std::mt19937 rng(4);
  int types = 0;
  for (int t = 0; t < GGML_TYPE_COUNT; ++t) {
    const auto type = static_cast<ggml_type>(t);
    if (ggml_type_size(type) == 0 || !ggml_is_quantized(type)) continue;
    const TensorInfo info = info_of(DType::quantised, type);
    if (!convertible(info, GGML_TYPE_F32)) continue;
    CAPTURE(ggml_type_name(type));
    const std::int64_t count = ggml_blck_size(type) * 20;
    std::vector<std::byte> blocks(ggml_row_size(type, count));
    for (auto& b : blocks) b = static_cast<std::byte>(rng());
    std::vector<std::byte> out(static_cast<std::size_t>(count) * 2);
    CHECK(convert(info, blocks, count, GGML_TYPE_F16, out));
    ++types;
  }
  CHECK(types >= 20);
}
