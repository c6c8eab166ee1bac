#include "io/image.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>
#include <exception>

#include "base/utf8.h"
#include "io/atomic_file.h"
#include "io/file.h"

namespace sluice {
namespace {

// libpng reports errors by longjmp. Hence: the functions that call setjmp have no locals with destructors, everything they make
// lies in a struct of the caller, and callbacks never let an exception through C frames.

struct Trouble {
  std::array<char, 200> text{};
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* trouble = static_cast<Trouble*>(png_get_error_ptr(png));
  std::strncpy(trouble->text.data(), message, trouble->text.size() - 1);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

struct Writer {
  Trouble trouble;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::vector<std::byte> out;
  std::vector<png_text> texts;
  ~Writer() { png_destroy_write_struct(&png, &info); }
};

void on_write(png_structp png, png_bytep bytes, png_size_t size) {
  auto* writer = static_cast<Writer*>(png_get_io_ptr(png));
  bool ok = true;
  try {
    const auto* from = reinterpret_cast<const std::byte*>(bytes);
    writer->out.insert(writer->out.end(), from, from + size);
  } catch (const std::exception&) {
    ok = false;
  }
  if (!ok) png_error(png, "out of memory");
}

void on_flush(png_structp) {}

bool write_all(Writer& w, const Image& image) {
  if (setjmp(png_jmpbuf(w.png))) return false;
  png_set_write_fn(w.png, &w, on_write, on_flush);
  // Named, not left to the library's defaults, which may change between versions.
  png_set_compression_level(w.png, 6);
  png_set_filter(w.png, PNG_FILTER_TYPE_BASE, PNG_ALL_FILTERS);
  png_set_IHDR(w.png, w.info, static_cast<png_uint_32>(image.width), static_cast<png_uint_32>(image.height), 8,
               PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (!w.texts.empty()) png_set_text(w.png, w.info, w.texts.data(), static_cast<int>(w.texts.size()));
  png_write_info(w.png, w.info);
  for (int y = 0; y < image.height; ++y)
    png_write_row(w.png, image.rgb.data() + static_cast<std::size_t>(y) * static_cast<std::size_t>(image.width) * 3);
  png_write_end(w.png, nullptr);
  return true;
}

/// Text in the encoding its chunk wants.
struct Chunk {
  std::string keyword, text;
  bool latin1 = true;
};

Result<Chunk> make_chunk(const std::string& keyword, const std::string& text) {
  Chunk chunk;
  std::string utf8;
  for (std::string_view rest = text; !rest.empty();) {
    char32_t code = next_code_point(rest);
    if (code == 0) code = 0xFFFD;
    append_utf8(utf8, code);
    // 0x80 to 0x9F are control characters in Latin-1, which PNG discourages.
    if (code > 0xFF || (code >= 0x80 && code < 0xA0)) chunk.latin1 = false;
    if (chunk.latin1) chunk.text.push_back(static_cast<char>(static_cast<unsigned char>(code)));
  }
  if (!chunk.latin1) chunk.text = std::move(utf8);
  bool fits = is_utf8(keyword) && !keyword.empty() && keyword.front() != ' ' && keyword.back() != ' ' &&
              keyword.find("  ") == std::string::npos;
  for (std::string_view rest = keyword; fits && !rest.empty();) {
    const char32_t code = next_code_point(rest);
    fits = (code >= 0x20 && code < 0x7F) || (code > 0xA0 && code <= 0xFF);
    chunk.keyword.push_back(static_cast<char>(static_cast<unsigned char>(code)));
  }
  if (!fits || chunk.keyword.size() > 79)
    return fail(Code::invalid_argument,
                fmt::format("'{}' cannot be a PNG text keyword: 1 to 79 Latin-1 characters, no outer or double spaces",
                            printable(keyword)));
  return chunk;
}

std::string latin1_to_utf8(const char* text, std::size_t size) {
  std::string out;
  for (std::size_t i = 0; i < size; ++i) append_utf8(out, static_cast<unsigned char>(text[i]));
  return out;
}

struct Reader {
  Trouble trouble;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::span<const std::byte> rest;
  Bytes raw_bytes = 0;  ///< of the pixels before compression
  png_uint_32 width = 0, height = 0;
  std::vector<std::uint8_t> rgba;
  std::vector<png_bytep> rows;
  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
};

void on_read(png_structp png, png_bytep out, png_size_t size) {
  auto* reader = static_cast<Reader*>(png_get_io_ptr(png));
  if (size > reader->rest.size()) png_error(png, "the file ends too soon");
  std::memcpy(out, reader->rest.data(), size);
  reader->rest = reader->rest.subspan(size);
}

constexpr Bytes kLargestChunk = 4 * MiB;  // of all but pixels; text with a whole workflow in it is smaller

/// Whether every chunk up to IEND lies inside the file and none but IDAT is larger than `kLargestChunk`. libpng allocates and
/// clears what a text chunk's length field announces, up to 2 GiB, before it looks for the bytes.
bool chunks_fit(std::span<const std::byte> bytes) {
  for (bytes = bytes.subspan(8); bytes.size() >= 12;) {
    Bytes length = 0;
    for (std::size_t i = 0; i < 4; ++i) length = length << 8 | std::to_integer<Bytes>(bytes[i]);
    const std::string_view type(reinterpret_cast<const char*>(bytes.data() + 4), 4);
    if (length > bytes.size() - 12 || (type != "IDAT" && length > kLargestChunk)) return false;
    if (type == "IEND") return true;
    bytes = bytes.subspan(12 + length);
  }
  return false;
}

bool read_header(Reader& r) {
  if (setjmp(png_jmpbuf(r.png))) return false;
  png_set_read_fn(r.png, &r, on_read);
  // Bounds are checked by the caller too; these keep ancillary chunks from taking memory without limit.
  png_set_user_limits(r.png, static_cast<png_uint_32>(kLargestImageSide), static_cast<png_uint_32>(kLargestImageSide));
  png_set_chunk_malloc_max(r.png, kLargestChunk);
  png_set_chunk_cache_max(r.png, 64);
  png_read_info(r.png, r.info);
  r.width = png_get_image_width(r.png, r.info);
  r.height = png_get_image_height(r.png, r.info);
  r.raw_bytes = static_cast<Bytes>(png_get_rowbytes(r.png, r.info)) * r.height;
  png_set_expand(r.png);
  png_set_scale_16(r.png);
  png_set_gray_to_rgb(r.png);
  png_set_add_alpha(r.png, 0xFF, PNG_FILLER_AFTER);
  png_set_interlace_handling(r.png);
  png_read_update_info(r.png, r.info);
  return true;
}

bool read_pixels(Reader& r) {
  if (setjmp(png_jmpbuf(r.png))) return false;
  if (png_get_rowbytes(r.png, r.info) != static_cast<png_size_t>(r.width) * 4) png_error(r.png, "unexpected row size");
  png_read_image(r.png, r.rows.data());
  png_read_end(r.png, r.info);
  return true;
}

Result<Image> decode(std::span<const std::byte> bytes, ImageText* text) {
  if (bytes.size() < 8 || png_sig_cmp(reinterpret_cast<png_const_bytep>(bytes.data()), 0, 8) != 0)
    return fail(Code::unsupported, "this is no PNG picture");
  if (!chunks_fit(bytes)) return fail(Code::corrupt, "the PNG cannot be read: a chunk is too long, or the file ends too soon");
  Reader r;
  r.rest = bytes;
  r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r.trouble, on_error, on_warning);
  if (r.png != nullptr) r.info = png_create_info_struct(r.png);
  if (r.info == nullptr) return fail(Code::io, "libpng could not start");
  if (!read_header(r)) return fail(Code::corrupt, fmt::format("the PNG cannot be read: {}", r.trouble.text.data()));
  if (static_cast<std::int64_t>(r.width) * r.height > kMostImagePixels)
    return fail(Code::unsupported,
                fmt::format("the picture of {} x {} is larger than {} pixels", r.width, r.height, kMostImagePixels));
  // Deflate packs at most 1032 to 1: a small file that announces a huge picture is refused before memory is taken for it.
  if (r.raw_bytes / 1032 > bytes.size())
    return fail(Code::corrupt, fmt::format("the PNG announces {} x {} pixels, far more than its {} bytes can hold", r.width,
                                           r.height, bytes.size()));
  r.rgba.resize(static_cast<std::size_t>(r.width) * r.height * 4);
  r.rows.resize(r.height);
  for (std::size_t y = 0; y < r.height; ++y) r.rows[y] = r.rgba.data() + y * r.width * 4;
  if (!read_pixels(r)) return fail(Code::corrupt, fmt::format("the PNG cannot be read: {}", r.trouble.text.data()));

  Image image{.width = static_cast<int>(r.width), .height = static_cast<int>(r.height), .rgb = {}};
  image.rgb.resize(r.rgba.size() / 4 * 3);
  for (std::size_t i = 0; i < r.rgba.size() / 4; ++i) {
    const unsigned alpha = r.rgba[4 * i + 3];
    for (std::size_t c = 0; c < 3; ++c)
      image.rgb[3 * i + c] = static_cast<std::uint8_t>((r.rgba[4 * i + c] * alpha + 255 * (255 - alpha) + 127) / 255);
  }
  if (text != nullptr) {
    text->clear();
    png_textp chunks = nullptr;
    int count = 0;
    png_get_text(r.png, r.info, &chunks, &count);
    for (int i = 0; i < count; ++i) {
      const png_text& chunk = chunks[i];
      const bool utf8 = chunk.compression == PNG_ITXT_COMPRESSION_NONE || chunk.compression == PNG_ITXT_COMPRESSION_zTXt;
      text->emplace_back(latin1_to_utf8(chunk.key, std::strlen(chunk.key)),
                         chunk.text == nullptr ? std::string()
                         : utf8                ? std::string(chunk.text, chunk.itxt_length)
                                               : latin1_to_utf8(chunk.text, chunk.text_length));
    }
  }
  return image;
}

}  // namespace

Result<std::vector<std::byte>> encode_png(const Image& image, const ImageText& text) {
  const std::int64_t pixels = static_cast<std::int64_t>(image.width) * image.height;
  if (image.width < 1 || image.height < 1 || image.width > kLargestImageSide || image.height > kLargestImageSide ||
      pixels > kMostImagePixels || image.rgb.size() != static_cast<std::size_t>(pixels) * 3)
    return fail(Code::invalid_argument, fmt::format("a picture of {} x {} with {} bytes of pixels cannot be written",
                                                    image.width, image.height, image.rgb.size()));
  std::vector<Chunk> chunks;
  for (const auto& [keyword, value] : text) {
    SLUICE_ASSIGN(Chunk chunk, make_chunk(keyword, value));
    chunks.push_back(std::move(chunk));
  }
  static char no_language[] = "";
  Writer w;
  for (Chunk& chunk : chunks) {
    png_text entry{};
    entry.compression = chunk.latin1 ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
    entry.key = chunk.keyword.data();
    entry.text = chunk.text.data();
    (chunk.latin1 ? entry.text_length : entry.itxt_length) = chunk.text.size();
    entry.lang = no_language;
    entry.lang_key = no_language;
    w.texts.push_back(entry);
  }
  w.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &w.trouble, on_error, on_warning);
  if (w.png != nullptr) w.info = png_create_info_struct(w.png);
  if (w.info == nullptr) return fail(Code::io, "libpng could not start");
  if (!write_all(w, image)) return fail(Code::io, fmt::format("the PNG cannot be written: {}", w.trouble.text.data()));
  return std::move(w.out);
}

Status write_png(const std::string& path, const Image& image, const ImageText& text) {
  SLUICE_ASSIGN(const auto bytes, encode_png(image, text));
  return write_whole_file(path, bytes);
}

Result<Image> decode_png(std::span<const std::byte> bytes, ImageText* text) {
  try {
    return decode(bytes, text);
  } catch (const std::exception& error) {
    return fail(Code::corrupt, fmt::format("the PNG cannot be read: {}", error.what()));
  }
}

Result<Image> read_png(const std::string& path, ImageText* text) {
  SLUICE_ASSIGN(const auto file, system_files()->open(path));
  if (file->size() > GiB)
    return fail(Code::unsupported, fmt::format("{}: {} is too large for a picture", path, format_bytes(file->size())));
  std::vector<std::byte> bytes(file->size());
  SLUICE_TRY(file->read_at(0, bytes));
  auto image = decode_png(bytes, text);
  if (!image) return fail_while(path, std::move(image).error());
  return image;
}

}  // namespace sluice
