#include "io/image.h"

#include <doctest/doctest.h>
#include <zlib.h>

#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "io/test_folder.h"

using namespace sluice;

namespace {

Image noise_image(int width, int height, unsigned seed = 1) {
  Image image{.width = width, .height = height, .rgb = {}};
  std::mt19937 rng(seed);
  for (int i = 0; i < width * height * 3; ++i) image.rgb.push_back(static_cast<std::uint8_t>(rng()));
  return image;
}

void put_u32(std::vector<std::byte>& out, std::size_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<std::byte>(value >> shift));
}

void put_chunk(std::vector<std::byte>& out, std::string_view type, const std::vector<std::uint8_t>& data) {
  put_u32(out, data.size());
  const std::size_t start = out.size();
  for (const char c : type) out.push_back(static_cast<std::byte>(c));
  for (const auto d : data) out.push_back(static_cast<std::byte>(d));
  put_u32(out, crc32(0, reinterpret_cast<const Bytef*>(out.data() + start), static_cast<uInt>(out.size() - start)));
}

/// A PNG made by hand from `rows` (bytes of each row, unfiltered), of any colour type.
std::vector<std::byte> raw_png(unsigned width, unsigned height, int depth, int colour,
                               const std::vector<std::vector<std::uint8_t>>& rows,
                               const std::vector<std::pair<std::string, std::vector<std::uint8_t>>>& extra = {}) {
  std::vector<std::byte> out;
  for (const int b : {0x89, 0x50, 0x4E, 0x47, 13, 10, 26, 10}) out.push_back(static_cast<std::byte>(b));
  std::vector<std::uint8_t> header;
  for (const unsigned n : {width, height})
    for (int shift = 24; shift >= 0; shift -= 8) header.push_back(static_cast<std::uint8_t>(n >> shift));
  for (const int n : {depth, colour, 0, 0, 0}) header.push_back(static_cast<std::uint8_t>(n));
  put_chunk(out, "IHDR", header);
  for (const auto& [type, data] : extra) put_chunk(out, type, data);
  std::vector<std::uint8_t> filtered;
  for (const auto& row : rows) {
    filtered.push_back(0);
    filtered.insert(filtered.end(), row.begin(), row.end());
  }
  uLongf size = compressBound(filtered.size());
  std::vector<std::uint8_t> packed(size);
  REQUIRE(compress(packed.data(), &size, filtered.data(), filtered.size()) == Z_OK);
  packed.resize(size);
  put_chunk(out, "IDAT", packed);
  put_chunk(out, "IEND", {});
  return out;
}

bool contains(const std::vector<std::byte>& bytes, std::string_view part) {
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()).find(part) != std::string_view::npos;
}

}  // namespace

TEST_CASE("png: pixels and text come back; the same input gives the same bytes; sizes down to 1 x 1") {
  const test::Folder folder;
  const ImageText text{
      {"parameters", "a red apple\nSteps: 20, Seed: 7"}, {"Title", "größe"}, {"more", "名前 😀"}, {"empty", ""}};
  for (const auto& [width, height] : {std::pair{1, 1}, std::pair{3, 2}, std::pair{64, 65}, std::pair{1, 300}}) {
    CAPTURE(width);
    const Image image = noise_image(width, height);
    REQUIRE(write_png(folder / "a.png", image, text));
    ImageText got;
    const Image back = read_png(folder / "a.png", &got).value();
    CHECK(back.width == width);
    CHECK(back.height == height);
    CHECK(back.rgb == image.rgb);
    CHECK(got == text);
    CHECK(encode_png(image, text).value() == test::slurp(folder / "a.png"));
  }
  const auto bytes = test::slurp(folder / "a.png");
  CHECK(contains(bytes, std::string_view("tEXtparameters\0a red", 20)));
  CHECK(contains(bytes, std::string_view("tEXtTitle\0gr\xf6\xdf"
                                         "e",
                                         14)));
  CHECK(contains(bytes, std::string_view("iTXtmore\0\0\0\0\0名", 16)));
  CHECK_FALSE(contains(bytes, "tIME"));
}

TEST_CASE("png: text of any bytes is written; keywords are checked") {
  const Image image = noise_image(2, 2);
  ImageText got;
  const auto bytes = encode_png(image, {{"parameters", std::string("a\xff"
                                                                   "b\0c",
                                                                   5)}})
                         .value();
  REQUIRE(decode_png(bytes, &got));
  CHECK(got == ImageText{{"parameters", "a\uFFFDb\uFFFDc"}});
  for (const std::string keyword : {"", " a", "a ", "a  b", "a\nb", "名", "\xff"}) {
    CAPTURE(keyword);
    CHECK(encode_png(image, {{keyword, "x"}}).error().code == Code::invalid_argument);
  }
  CHECK(encode_png(image, {{std::string(80, 'k'), "x"}}).error().code == Code::invalid_argument);
  CHECK(encode_png(image, {{std::string(79, 'k'), "x"}}));
}

TEST_CASE("png: pictures that make no sense are refused before anything is written") {
  const test::Folder folder;
  for (const Image& image : {Image{}, Image{.width = 2, .height = 2, .rgb = std::vector<std::uint8_t>(11)},
                             Image{.width = -1, .height = -3, .rgb = std::vector<std::uint8_t>(9)},
                             Image{.width = 1 << 30, .height = 1 << 30, .rgb = {}}})
    CHECK(write_png(folder / "a.png", image).error().code == Code::invalid_argument);
  CHECK(folder.entries() == 0);
  const auto missing = write_png(folder / "no/a.png", noise_image(1, 1));
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == Code::io);
  CHECK(missing.error().message.find("no/a.png") != std::string::npos);
}

TEST_CASE("png: grey, 16 bits, palette and transparency become RGB, transparency over white") {
  const auto rgb = [](const std::vector<std::byte>& bytes) {
    const auto image = decode_png(bytes);
    REQUIRE_MESSAGE(image, image.error().message);
    return std::vector<int>(image->rgb.begin(), image->rgb.end());
  };
  using V = std::vector<int>;
  CHECK(rgb(raw_png(2, 1, 8, 0, {{0, 200}})) == V{0, 0, 0, 200, 200, 200});
  CHECK(rgb(raw_png(8, 1, 1, 0, {{0b10000001}})) ==
        V{255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255});
  CHECK(rgb(raw_png(3, 1, 4, 0, {{0x0F, 0x80}})) == V{0, 0, 0, 255, 255, 255, 136, 136, 136});
  // 16 bits are rounded, not cut: 0x00FF is nearer to 0x0101, which is 1 of 255, than to 0.
  CHECK(rgb(raw_png(1, 1, 16, 2, {{0x00, 0xFF, 0x00, 0x7F, 0xFF, 0xFF}})) == V{1, 0, 255});
  CHECK(rgb(raw_png(1, 2, 8, 6, {{10, 20, 30, 0}, {10, 20, 30, 255}})) == V{255, 255, 255, 10, 20, 30});
  CHECK(rgb(raw_png(1, 1, 8, 6, {{0, 100, 255, 128}})) == V{127, 177, 255});
  CHECK(rgb(raw_png(1, 1, 8, 4, {{0, 51}})) == V{204, 204, 204});
  CHECK(rgb(raw_png(1, 1, 16, 4, {{0, 0, 51, 51}})) == V{204, 204, 204});
  CHECK(rgb(raw_png(2, 1, 8, 3, {{1, 0}}, {{"PLTE", {1, 2, 3, 4, 5, 6}}})) == V{4, 5, 6, 1, 2, 3});
  CHECK(rgb(raw_png(2, 1, 8, 3, {{1, 0}}, {{"PLTE", {1, 2, 3, 4, 5, 6}}, {"tRNS", {255, 0}}})) == V{255, 255, 255, 1, 2, 3});
  CHECK(rgb(raw_png(2, 1, 8, 2, {{1, 2, 3, 4, 5, 6}}, {{"tRNS", {0, 1, 0, 2, 0, 3}}})) == V{255, 255, 255, 4, 5, 6});
}

TEST_CASE("png: other files, truncation at every byte and flipped bytes are errors, never crashes") {
  CHECK(decode_png({}).error().code == Code::unsupported);
  CHECK(read_png("/nonexistent.png").error().code == Code::not_found);
  const auto whole = encode_png(noise_image(9, 7), {{"parameters", "x"}, {"u", "名"}}).value();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK_FALSE(decode_png(std::span(whole).first(size)));
  }
  std::mt19937 rng(5);
  int refused = 0;
  for (int i = 0; i < 10'000; ++i) {
    auto bytes = whole;
    bytes[rng() % bytes.size()] ^= static_cast<std::byte>(1u << (rng() % 8));
    ImageText text;
    if (!decode_png(bytes, &text)) ++refused;
  }
  CHECK(refused > 5'000);
}

TEST_CASE("png: a small file that announces a huge picture takes no memory") {
  CHECK(decode_png(raw_png(32768, 32768, 8, 6, {{0}})).error().code == Code::unsupported);
  CHECK(decode_png(raw_png(8000, 8000, 8, 6, {{0}})).error().code == Code::corrupt);
  CHECK(decode_png(raw_png(0x7FFFFFFF, 0x7FFFFFFF, 8, 6, {{0}})).error().code == Code::corrupt);
  CHECK(decode_png(raw_png(0, 1, 8, 6, {{0}})).error().code == Code::corrupt);
  // A text chunk that says it has a GiB, and compressed text that unpacks to 20 MiB.
  auto long_text = encode_png(noise_image(1, 1), {{"k", "text"}}).value();
  const std::string_view all(reinterpret_cast<const char*>(long_text.data()), long_text.size());
  long_text[all.find("tEXt") - 4] = std::byte{0x40};
  CHECK(decode_png(long_text).error().code == Code::corrupt);
  uLongf size = 30'000;
  std::vector<std::uint8_t> packed(size);
  REQUIRE(compress(packed.data(), &size, std::vector<std::uint8_t>(20 * MiB, 'a').data(), 20 * MiB) == Z_OK);
  packed.resize(size);
  packed.insert(packed.begin(), {'k', 0, 0});
  ImageText text;
  REQUIRE(decode_png(raw_png(1, 1, 8, 0, {{7}}, {{"zTXt", packed}}), &text));
  for (const auto& [keyword, value] : text) CHECK(value.size() <= 4 * MiB);
}
