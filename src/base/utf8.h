#pragma once

#include <string>
#include <string_view>

namespace sluice {

/// Whether `text` is well-formed UTF-8 (no overlong forms, no surrogates, at most U+10FFFF; RFC 3629). Cost: one pass.
bool is_utf8(std::string_view text);

/// Takes the first code point off `text`, which must not be empty. A maximal ill-formed piece (cut off, overlong, surrogate,
/// beyond U+10FFFF) gives one U+FFFD, as the Unicode standard recommends (section 3.9, table 3-7).
char32_t next_code_point(std::string_view& text);

/// `bytes` as Unicode scalar values, by next_code_point. Never fails; NUL is a character like others.
std::u32string decode_utf8(std::string_view bytes);

/// Appends `code` as UTF-8. `code` must be a scalar value (no surrogate, at most U+10FFFF).
void append_utf8(std::string& to, char32_t code);

/// A foreign name made fit for a message or a terminal: ill-formed bytes and control characters are escaped as \xNN, and more
/// than 200 bytes are cut with "…".
std::string printable(std::string_view name);

}  // namespace sluice
