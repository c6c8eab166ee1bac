#include "text/chunks.h"

#include <algorithm>
#include <cassert>

namespace sluice {

void TokenChunks::pad_to_chunks(std::size_t rows) {
  std::array<std::int32_t, kRow> row;
  row.fill(pad);
  row[0] = ClipTokenizer::kBos;
  row[1] = ClipTokenizer::kEos;
  std::array<float, kRow> ones;
  ones.fill(1.0f);
  while (ids.size() < rows) {
    ids.push_back(row);
    weights.push_back(ones);
  }
}

std::vector<float> TokenChunks::flat_weights() const {
  std::vector<float> flat;
  flat.reserve(kRow * weights.size());
  for (const auto& row : weights) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

bool TokenChunks::weighted() const {
  return std::any_of(weights.begin(), weights.end(),
                     [](const auto& row) { return std::any_of(row.begin(), row.end(), [](float w) { return w != 1.0f; }); });
}

TokenChunks chunk_tokens(std::span<const std::int32_t> ids, std::span<const float> weights, std::int32_t pad) {
  assert(ids.size() == weights.size());
  TokenChunks chunks{.ids = {}, .weights = {}, .pad = pad};
  chunks.pad_to_chunks(std::max<std::size_t>(1, (ids.size() + TokenChunks::kTokens - 1) / TokenChunks::kTokens));
  for (std::size_t row = 0; row < chunks.count(); ++row) {
    const std::size_t from = row * TokenChunks::kTokens;
    const std::size_t n = std::min(TokenChunks::kTokens, ids.size() - std::min(from, ids.size()));
    for (std::size_t i = 0; i < n; ++i) {
      chunks.ids[row][1 + i] = ids[from + i];
      chunks.weights[row][1 + i] = weights[from + i];
    }
    chunks.ids[row][1 + n] = ClipTokenizer::kEos;
  }
  return chunks;
}

TokenChunks tokenize_prompt(const ClipTokenizer& tokenizer, std::string_view prompt, std::int32_t pad) {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  for (const WeightedText& piece : parse_prompt(prompt)) {
    const auto tokens = tokenizer.encode(piece.text);
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    weights.resize(ids.size(), static_cast<float>(piece.weight));
  }
  return chunk_tokens(ids, weights, pad);
}

}  // namespace sluice
