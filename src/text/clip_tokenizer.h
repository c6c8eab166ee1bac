#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace sluice {

/// CLIP's byte-level BPE tokenizer (openai/CLIP's vocabulary, 49408 ids; the rules of Hugging Face's CLIPTokenizer).
///
/// In this order: the literal strings <|startoftext|> and <|endoftext|> are cut out and become their ids; what is left is
/// normalised (NFC, runs of white space to one space, lower case letter by letter), split into contractions ('s 't 're 've 'm
/// 'll 'd), runs of letters, single digits and runs of anything else but space, and each piece is merged by rank from its
/// bytes. HTML entities and mojibake are not repaired. Immutable: threads share it.
class ClipTokenizer {
 public:
  static constexpr std::int32_t kBos = 49406;
  static constexpr std::int32_t kEos = 49407;
  static constexpr std::int32_t kVocabulary = 49408;

  /// The embedded vocabulary. Parsed on the first call (about 50 ms, some 3 MiB kept), then shared; safe from any thread.
  static const ClipTokenizer& standard();

  /// The ids of `text` without begin and end. Any bytes are accepted: ill-formed UTF-8 becomes U+FFFD. Every id is in
  /// [0, kVocabulary). Cost: O(n log n), also for one endless word.
  std::vector<std::int32_t> encode(std::string_view text) const;

  ClipTokenizer(const ClipTokenizer&) = delete;
  ClipTokenizer& operator=(const ClipTokenizer&) = delete;
  ~ClipTokenizer();

 private:
  struct Tables;
  ClipTokenizer();
  void encode_plain(std::string_view text, std::vector<std::int32_t>& out) const;
  void encode_word(std::string_view bytes, std::vector<std::int32_t>& out) const;

  std::unique_ptr<const Tables> tables_;
};

}  // namespace sluice
