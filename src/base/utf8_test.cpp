#include "base/utf8.h"

#include <doctest/doctest.h>

#include <random>

namespace sluice {

TEST_CASE("decode_utf8: well-formed text round-trips, every scalar value") {
  std::u32string all;
  for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 97) {
    if (c < 0xD800 || c > 0xDFFF) all.push_back(c);
  }
  all += U"\uD7FF\uE000\uFFFF\U00010000\U0010FFFF";
  std::string bytes;
  for (const char32_t c : all) append_utf8(bytes, c);
  CHECK(decode_utf8(bytes) == all);
}

TEST_CASE("decode_utf8: each maximal ill-formed piece is one U+FFFD") {
  const auto check = [](std::string_view bytes, std::u32string_view want) {
    CAPTURE(bytes);
    CHECK(decode_utf8(bytes) == want);
  };
  using namespace std::literals;
  check("", U"");
  check("\0a"sv, U"\0a"sv);
  check("\xFF\xFE", U"\uFFFD\uFFFD");
  check("\x80", U"\uFFFD");
  check("\xC0\xAF", U"\uFFFD\uFFFD");                                // overlong
  check("\xE0\x80\xAF", U"\uFFFD\uFFFD\uFFFD");                      // overlong
  check("\xED\xA0\x80", U"\uFFFD\uFFFD\uFFFD");                      // surrogate
  check("\xF4\x91\x92\x93\xFF", U"\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");  // beyond U+10FFFF
  check("\xF0\x80\x80\x41", U"\uFFFD\uFFFD\uFFFD\u0041");
  check("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", U"\uFFFD\uFFFD\uFFFD\uFFFD\u0041");  // the standard's table 3-11
  check("caf\xC3", U"caf\uFFFD");
  check("\xC3(", U"\uFFFD(");
}

}  // namespace sluice
