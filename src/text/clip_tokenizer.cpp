#include "text/clip_tokenizer.h"

#include <zlib.h>

#include <array>
#include <cassert>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/utf8.h"
#include "text/byte_pair_merger.h"
#include "text/clip_split.h"
#include "text/clip_vocabulary_data.h"

namespace sluice {
namespace {

/// Merges that count: 49408 ids less 256 bytes, 256 bytes that end a word, and two special tokens. The file has more.
constexpr std::int32_t kMerges = 48894;

constexpr std::pair<std::string_view, std::int32_t> kSpecial[] = {{"<|startoftext|>", ClipTokenizer::kBos},
                                                                  {"<|endoftext|>", ClipTokenizer::kEos}};

/// The embedded bytes are ours, so a failure here is a broken build, not a broken input.
std::string inflate_vocabulary() {
  std::string text(4u << 20, '\0');
  z_stream stream{};
  constexpr int kGzip = 16;
  [[maybe_unused]] int status = inflateInit2(&stream, MAX_WBITS + kGzip);
  assert(status == Z_OK);
  stream.next_in = const_cast<Bytef*>(clip_vocabulary_gz);
  stream.avail_in = static_cast<uInt>(clip_vocabulary_gz_size);
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  status = inflate(&stream, Z_FINISH);
  assert(status == Z_STREAM_END);
  text.resize(stream.total_out);
  inflateEnd(&stream);
  return text;
}

/// The order in which CLIP numbers bytes: first those that show as a character of their own, then the others.
std::array<int, 256> byte_order() {
  const auto shows = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  std::array<int, 256> order{};
  std::size_t n = 0;
  for (const bool wanted : {true, false}) {
    for (int b = 0; b < 256; ++b) {
      if (shows(b) == wanted) order[n++] = b;
    }
  }
  return order;
}

}  // namespace

struct ClipTokenizer::Tables {
  std::array<std::int32_t, 256> id_of_byte{};  // the same byte at the end of a word: + 256
  BytePairMerger merger;
};

ClipTokenizer::ClipTokenizer() {
  auto tables = std::make_unique<Tables>();
  std::unordered_map<std::string, std::int32_t> id_of;
  id_of.reserve(kVocabulary);
  const auto order = byte_order();
  char32_t hidden = 256;  // bytes without a character of their own are written as U+0100, U+0101, ...
  for (std::int32_t i = 0; i < 256; ++i) {
    const auto byte = static_cast<std::size_t>(order[static_cast<std::size_t>(i)]);
    const bool shows = i < 188;
    std::string name;
    append_utf8(name, shows ? static_cast<char32_t>(byte) : hidden++);
    tables->id_of_byte[byte] = i;
    id_of[name] = i;
    id_of[name + "</w>"] = i + 256;
  }
  // Line 0 is a heading; then one merge a line: "left right".
  const std::string text = inflate_vocabulary();
  std::size_t begin = text.find('\n') + 1;
  for (std::int32_t i = 0; i < kMerges; ++i) {
    const std::size_t end = text.find('\n', begin), space = text.find(' ', begin);
    assert(end != std::string::npos && space < end);
    const std::string left = text.substr(begin, space - begin), right = text.substr(space + 1, end - space - 1);
    assert(id_of.contains(left) && id_of.contains(right));
    assert(!id_of.contains(left + right));  // one way to make each symbol: what lets merging go pair by pair
    id_of[left + right] = 512 + i;
    tables->merger.add(id_of[left], id_of[right], 512 + i);
    begin = end + 1;
  }
  tables_ = std::move(tables);
}

ClipTokenizer::~ClipTokenizer() = default;

const ClipTokenizer& ClipTokenizer::standard() {
  static const ClipTokenizer tokenizer;
  return tokenizer;
}

std::vector<std::int32_t> ClipTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  std::size_t plain = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::pair<std::string_view, std::int32_t>* found = nullptr;
    if (text[i] == '<') {
      for (const auto& special : kSpecial) {
        if (text.substr(i, special.first.size()) == special.first) found = &special;
      }
    }
    if (found == nullptr) {
      ++i;
      continue;
    }
    encode_plain(text.substr(plain, i - plain), ids);
    ids.push_back(found->second);
    i += found->first.size();
    plain = i;
  }
  encode_plain(text.substr(plain), ids);
  return ids;
}

void ClipTokenizer::encode_plain(std::string_view text, std::vector<std::int32_t>& out) const {
  for (const std::string& piece : clip_split(clip_normalise(text))) encode_word(piece, out);
}

void ClipTokenizer::encode_word(std::string_view bytes, std::vector<std::int32_t>& out) const {
  std::vector<std::int32_t> symbols;
  symbols.reserve(bytes.size());
  for (const char c : bytes) symbols.push_back(tables_->id_of_byte[static_cast<unsigned char>(c)]);
  if (!symbols.empty()) symbols.back() += 256;
  const auto merged = tables_->merger.merge(std::move(symbols));
  out.insert(out.end(), merged.begin(), merged.end());
}

}  // namespace sluice
