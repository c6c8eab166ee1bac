#include "base/utf8.h"

#include <fmt/format.h>

namespace sluice {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

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

struct Piece {
  std::size_t length = 0;  ///< bytes it takes
  char32_t code = kReplacement;
  bool well_formed = false;
};

Piece first_piece(std::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  if (first < 0x80) return {1, first, true};
  const Lead lead = lead_of(first);
  char32_t code = first & (0x3Fu >> lead.following);
  int read = 0;
  while (read < lead.following && static_cast<std::size_t>(read) + 1 < bytes.size()) {
    const auto b = static_cast<unsigned char>(bytes[static_cast<std::size_t>(read) + 1]);
    const bool fits = read == 0 ? b >= lead.low && b <= lead.high : (b & 0xC0) == 0x80;
    if (!fits) break;
    code = (code << 6) | (b & 0x3Fu);
    ++read;
  }
  const bool well_formed = lead.following > 0 && read == lead.following;
  return {static_cast<std::size_t>(read) + 1, well_formed ? code : kReplacement, well_formed};
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Piece piece = first_piece(text);
    if (!piece.well_formed) return false;
    text.remove_prefix(piece.length);
  }
  return true;
}

char32_t next_code_point(std::string_view& text) {
  const Piece piece = first_piece(text);
  text.remove_prefix(piece.length);
  return piece.code;
}

std::u32string decode_utf8(std::string_view bytes) {
  std::u32string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) out.push_back(next_code_point(bytes));
  return out;
}

void append_utf8(std::string& to, char32_t code) {
  const auto put = [&to](char32_t byte) { to.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

std::string printable(std::string_view name) {
  std::string out;
  while (!name.empty()) {
    if (out.size() >= 200) return out + "…";
    const Piece piece = first_piece(name);
    const bool control = piece.code < 0x20 || (piece.code >= 0x7F && piece.code < 0xA0);
    if (!piece.well_formed || control) {
      for (const char c : name.substr(0, piece.length)) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out.append(name.substr(0, piece.length));
    }
    name.remove_prefix(piece.length);
  }
  return out;
}

}  // namespace sluice
