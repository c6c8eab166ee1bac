#pragma once

#include <string>
#include <string_view>

namespace sluice {

/// `bytes` as Unicode scalar values. Never fails: each maximal ill-formed piece (cut off, overlong, surrogate, beyond
/// U+10FFFF) becomes one U+FFFD, as the Unicode standard recommends (section 3.9, table 3-7). NUL is a character like others.
/// Cost: one pass.
std::u32string decode_utf8(std::string_view bytes);

/// Appends `c` to `out`. `c` must be a scalar value.
void append_utf8(std::string& out, char32_t c);

}  // namespace sluice
