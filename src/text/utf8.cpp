#include "text/utf8.h"

namespace sluice {
namespace {

/// What a lead byte promises: how many bytes follow, and the range the first of them must lie in.
struct Lead {
  int following = 0;
  unsigned char low = 0x80, high = 0xBF;
};

Lead lead_of(unsigned char b) {
  if (b >= 0xC2 && b <= 0xDF) return {1};
  if (b == 0xE0) return {2, 0xA0, 0xBF};
  if (b == 0xED) return {2, 0x80, 0x9F};
  if (b >= 0xE1 && b <= 0xEF) return {2};
  if (b == 0xF0) return {3, 0x90, 0xBF};
  if (b == 0xF4) return {3, 0x80, 0x8F};
  if (b >= 0xF1 && b <= 0xF3) return {3};
  return {};
}

}  // namespace

std::u32string decode_utf8(std::string_view bytes) {
  constexpr char32_t kReplacement = 0xFFFD;
  std::u32string out;
  out.reserve(bytes.size());
  for (std::size_t i = 0; i < bytes.size();) {
    const auto first = static_cast<unsigned char>(bytes[i++]);
    if (first < 0x80) {
      out.push_back(first);
      continue;
    }
    const Lead lead = lead_of(first);
    char32_t c = first & (0x3Fu >> lead.following);
    int read = 0;
    while (read < lead.following && i < bytes.size()) {
      const auto b = static_cast<unsigned char>(bytes[i]);
      const bool fits = read == 0 ? b >= lead.low && b <= lead.high : (b & 0xC0) == 0x80;
      if (!fits) break;
      c = (c << 6) | (b & 0x3Fu);
      ++read, ++i;
    }
    out.push_back(lead.following > 0 && read == lead.following ? c : kReplacement);
  }
  return out;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

}  // namespace sluice
