#include "io/utf8.h"

#include <fmt/format.h>

namespace sluice {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

/// Length of the well-formed sequence at the front of `text`, its code point in `code`; 0 if there is none.
std::size_t decode(std::string_view text, char32_t& code) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = at(0);
  if (first < 0x80) {
    code = first;
    return 1;
  }
  std::size_t length = 0;
  char32_t least = 0;
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2, least = 0x80, code = first & 0x1F;
  } else if ((first & 0xF0) == 0xE0) {
    length = 3, least = 0x800, code = first & 0x0F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4, least = 0x10000, code = first & 0x07;
  } else {
    return 0;
  }
  if (text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
    code = (code << 6) | (at(i) & 0x3F);
  }
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code < least || surrogate || code > 0x10FFFF ? 0 : length;
}

}  // namespace

bool is_utf8(std::string_view text) {
  char32_t code = 0;
  while (!text.empty()) {
    const std::size_t length = decode(text, code);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

char32_t next_code_point(std::string_view& text) {
  char32_t code = 0;
  const std::size_t length = decode(text, code);
  text.remove_prefix(length == 0 ? 1 : length);
  return length == 0 ? kReplacement : code;
}

void append_utf8(std::string& to, char32_t code) {
  const auto put = [&](char32_t byte) { to.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6)), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12)), put(0x80 | ((code >> 6) & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18)), put(0x80 | ((code >> 12) & 0x3F)), put(0x80 | ((code >> 6) & 0x3F)), put(0x80 | (code & 0x3F));
  }
}

std::string printable(std::string_view name) {
  std::string out;
  while (!name.empty()) {
    if (out.size() >= 200) return out + "…";
    char32_t code = 0;
    const std::size_t length = decode(name, code);
    const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
    if (length == 0 || control) {
      for (std::size_t i = 0; i < std::max<std::size_t>(length, 1); ++i)
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(name[i]));
    } else {
      out.append(name.substr(0, length));
    }
    name.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace sluice
