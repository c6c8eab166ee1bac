#include "text/clip_split.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/utf8.h"

namespace sluice {
namespace {

bool is_letter(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_number(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

/// Unicode's White_Space property, which no utf8proc category gives (PropList.txt).
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/// NFC. utf8proc_map does the same, but orders marks by exchanging neighbours: quadratic in a long run of them.
std::u32string compose(std::u32string_view text) {
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size() + text.size() / 4 + 8);
  constexpr auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  for (const char32_t c : text) {
    utf8proc_int32_t parts[32];
    int last_class = 0;
    const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 32, options, &last_class);
    if (n < 1 || n > 32) {
      points.push_back(static_cast<utf8proc_int32_t>(c));
    } else {
      points.insert(points.end(), parts, parts + n);
    }
  }
  // Canonical order: stable by combining class within each run of non-starters.
  const auto combining = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (std::size_t i = 0; i < points.size();) {
    if (combining(points[i]) == 0) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < points.size() && combining(points[end]) != 0) ++end;
    std::stable_sort(points.begin() + static_cast<std::ptrdiff_t>(i), points.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](utf8proc_int32_t a, utf8proc_int32_t b) { return combining(a) < combining(b); });
    i = end;
  }
  const auto n = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), options);
  if (n >= 0) points.resize(static_cast<std::size_t>(n));
  return {points.begin(), points.end()};
}

void append_lower(std::u32string& out, char32_t c) {
  if (c == 0x130) {
    out += U"i\u0307";  // the only letter whose unconditional lower case is longer (SpecialCasing.txt)
  } else {
    out.push_back(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

/// Length of the contraction at the start of `text`, 0 if there is none.
std::size_t contraction(std::u32string_view text) {
  for (const std::u32string_view c : {U"'s", U"'t", U"'re", U"'ve", U"'m", U"'ll", U"'d"}) {
    if (text.substr(0, c.size()) == c) return c.size();
  }
  return 0;
}

}  // namespace

std::u32string clip_normalise(std::string_view text) {
  std::u32string out;
  bool in_space = false;
  for (const char32_t c : compose(decode_utf8(text))) {
    const bool space = is_space(c);
    if (!space) append_lower(out, c);
    if (space && !in_space) out.push_back(U' ');
    in_space = space;
  }
  return out;
}

std::vector<std::string> clip_split(std::u32string_view text) {
  enum class Kind { space, letter, number, other };
  const auto kind = [](char32_t c) {
    return is_space(c) ? Kind::space : is_letter(c) ? Kind::letter : is_number(c) ? Kind::number : Kind::other;
  };
  std::vector<std::string> pieces;
  for (std::size_t i = 0; i < text.size();) {
    const Kind first = kind(text[i]);
    std::size_t length = contraction(text.substr(i));
    if (length == 0) {
      length = 1;
      if (first == Kind::letter || first == Kind::other) {
        while (i + length < text.size() && kind(text[i + length]) == first) ++length;
      }
    }
    if (first != Kind::space) {
      std::string& piece = pieces.emplace_back();
      for (const char32_t c : text.substr(i, length)) append_utf8(piece, c);
    }
    i += length;
  }
  return pieces;
}

}  // namespace sluice
