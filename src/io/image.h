#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace sluice {

/// A picture as people see it: 8 bits a channel, sRGB as stored, rows from the top, `rgb` is width × height × 3 bytes without
/// gaps.
struct Image {
  int width = 0, height = 0;
  std::vector<std::uint8_t> rgb;
};

/// Keyword and text, both UTF-8, in file order.
using ImageText = std::vector<std::pair<std::string, std::string>>;

/// Largest side and number of pixels that are read or written.
inline constexpr int kLargestImageSide = 32768;
inline constexpr std::int64_t kMostImagePixels = std::int64_t{1} << 26;

/// The picture as a PNG (8-bit RGB, not interlaced). Deterministic for one zlib: no time stamp. Text that Latin-1 can hold is a
/// tEXt chunk, other text iTXt (both uncompressed); ill-formed UTF-8 and NUL become U+FFFD. Errors: invalid_argument (size and
/// pixels disagree, out of bounds, keyword not 1 to 79 printable Latin-1 characters), io.
Result<std::vector<std::byte>> encode_png(const Image& image, const ImageText& text = {});

/// The same into a file, which appears complete or not at all (io/atomic_file.h). Errors: also io.
Status write_png(const std::string& path, const Image& image, const ImageText& text = {});

/// Any PNG as 8-bit RGB: palette and grey are expanded, 16 bits are rounded to 8, interlaced files are read, transparency
/// (alpha or tRNS) is laid over white without gamma: out = (c·a + 255·(255 − a)) / 255, rounded. Colour profiles and gAMA are
/// not applied. `text`, if given, receives the text chunks. Errors: corrupt, unsupported (not a PNG; larger than the bounds
/// above).
Result<Image> decode_png(std::span<const std::byte> bytes, ImageText* text = nullptr);

/// Errors: also not_found, io. Files above 1 GiB are refused unread.
Result<Image> read_png(const std::string& path, ImageText* text = nullptr);

}  // namespace sluice
