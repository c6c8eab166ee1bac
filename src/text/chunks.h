#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "text/clip_tokenizer.h"
#include "text/prompt.h"

namespace sluice {

/// A prompt as CLIP takes it: rows of 77 ids, each row 75 tokens between begin and end, and one weight per id.
/// Begin, end and padding weigh 1.
struct TokenChunks {
  static constexpr std::size_t kTokens = 75, kRow = 77;
  std::vector<std::array<std::int32_t, kRow>> ids;  ///< never empty: an empty prompt is one row
  std::vector<std::array<float, kRow>> weights;     ///< as many rows as `ids`
  std::int32_t pad = ClipTokenizer::kEos;  ///< what fills a row behind its end token: the end token in CLIP-L, 0 in OpenCLIP

  std::size_t count() const { return ids.size(); }
  /// Appends empty rows (begin, end, padding) up to `rows`, so that a prompt and its negative have the same number.
  /// Fewer than there are: nothing happens.
  void pad_to_chunks(std::size_t rows);
  /// All weights, row after row: [kRow * count()], as `apply_emphasis` takes them.
  std::vector<float> flat_weights() const;
  /// Whether any weight differs from 1.
  bool weighted() const;
};

/// Cuts tokens into rows of 75, wherever that falls: no rule about words or commas. `ids` and `weights` have one length.
TokenChunks chunk_tokens(std::span<const std::int32_t> ids, std::span<const float> weights,
                         std::int32_t pad = ClipTokenizer::kEos);

/// parse_prompt, encode piece by piece, chunk_tokens.
TokenChunks tokenize_prompt(const ClipTokenizer& tokenizer, std::string_view prompt, std::int32_t pad = ClipTokenizer::kEos);

}  // namespace sluice
