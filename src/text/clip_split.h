#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// NFC, runs of white space to one space, lower case, as CLIPTokenizer normalises. Lower-casing goes letter by letter with
/// the full mapping, so İ (U+0130) becomes two characters and no sigma turns final.
std::u32string clip_normalise(std::string_view text);

/// The pieces of CLIP's split pattern over normalised text, in order, as UTF-8; white space is dropped:
/// 's|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+
std::vector<std::string> clip_split(std::u32string_view text);

}  // namespace sluice
