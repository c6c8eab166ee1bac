#include "text/chunks.h"

#include <doctest/doctest.h>

#include <numeric>

namespace sluice {

TEST_CASE("chunk_tokens: rows of 75 at every length") {
  for (const std::size_t n : {0, 1, 74, 75, 76, 149, 150, 151, 300}) {
    for (const std::int32_t pad : {ClipTokenizer::kEos, 0}) {
      CAPTURE(n);
      CAPTURE(pad);
      std::vector<std::int32_t> ids(n);
      std::iota(ids.begin(), ids.end(), 1000);
      std::vector<float> weights(n);
      std::iota(weights.begin(), weights.end(), 2.0f);
      const TokenChunks chunks = chunk_tokens(ids, weights, pad);
      CHECK(chunks.count() == (n <= 75 ? 1 : (n + 74) / 75));
      CHECK(chunks.weights.size() == chunks.count());
      std::vector<std::int32_t> ids_back;
      std::vector<float> weights_back;
      for (std::size_t row = 0; row < chunks.count(); ++row) {
        const auto& r = chunks.ids[row];
        const auto& w = chunks.weights[row];
        CHECK(r[0] == ClipTokenizer::kBos);
        CHECK(w[0] == 1.0f);
        std::size_t i = 1;
        for (; r[i] != ClipTokenizer::kEos; ++i) {
          ids_back.push_back(r[i]);
          weights_back.push_back(w[i]);
        }
        CHECK(w[i] == 1.0f);
        for (++i; i < TokenChunks::kRow; ++i) {
          CHECK(r[i] == pad);
          CHECK(w[i] == 1.0f);
        }
      }
      CHECK(ids_back == ids);
      CHECK(weights_back == weights);
      CHECK(chunks.flat_weights().size() == 77 * chunks.count());
      CHECK(chunks.weighted() == (n > 0));
    }
  }
}

TEST_CASE("chunk_tokens: the negative prompt gets as many rows; a word at position 80 is in the second") {
  const auto& tokenizer = ClipTokenizer::standard();
  std::string prompt;
  for (int i = 0; i < 80; ++i) prompt += "word ";
  TokenChunks cond = tokenize_prompt(tokenizer, prompt + "cat"), uncond = tokenize_prompt(tokenizer, "");
  CHECK(cond.count() == 2);
  CHECK(cond.ids[1][6] == 2368);
  CHECK(uncond.count() == 1);
  uncond.pad_to_chunks(cond.count());
  REQUIRE(uncond.count() == 2);
  CHECK(uncond.ids[1] == uncond.ids[0]);
  CHECK(!uncond.weighted());
  uncond.pad_to_chunks(1);
  CHECK(uncond.count() == 2);
}

TEST_CASE("tokenize_prompt: weights follow their tokens") {
  const TokenChunks chunks = tokenize_prompt(ClipTokenizer::standard(), "a (photo of:1.5) a [cat]");
  CHECK(std::vector(chunks.ids[0].begin(), chunks.ids[0].begin() + 7) ==
        std::vector<std::int32_t>{49406, 320, 1125, 539, 320, 2368, 49407});
  const std::vector<float> want{1, 1, 1.5f, 1.5f, 1, static_cast<float>(1 / 1.1), 1};
  CHECK(std::vector(chunks.weights[0].begin(), chunks.weights[0].begin() + 7) == want);
}

}  // namespace sluice
