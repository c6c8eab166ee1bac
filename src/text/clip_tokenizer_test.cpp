#include "text/clip_tokenizer.h"

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>

#include "text/chunks.h"

namespace sluice {
namespace {

using Ids = std::vector<std::int32_t>;

Ids encode(std::string_view text) { return ClipTokenizer::standard().encode(text); }

std::vector<nlohmann::json> golden_prompts() {
  std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/tests/golden/tokenizer/clip/prompts.jsonl");
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(file, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

}  // namespace

TEST_CASE("golden tokenizer/clip: all prompts give the reference's ids, padded rows and chunks") {
  const auto rows = golden_prompts();
  REQUIRE(rows.size() == 94);
  for (const auto& row : rows) {
    const auto text = row["text"].get<std::string>();
    CAPTURE(text);
    const Ids ids = encode(text);
    CHECK(ids == row["ids"].get<Ids>());
    const TokenChunks chunks = chunk_tokens(ids, std::vector<float>(ids.size(), 1.0f));
    const Ids first(chunks.ids[0].begin(), chunks.ids[0].end());
    CHECK(first == row["padded_77"].get<Ids>());
    if (row["chunks_of_75"].is_null()) {
      CHECK(chunks.count() == 1);
      continue;
    }
    const auto want = row["chunks_of_75"].get<std::vector<Ids>>();
    REQUIRE(chunks.count() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(Ids(chunks.ids[i].begin(), chunks.ids[i].end()) == want[i]);
  }
}

TEST_CASE("clip tokenizer: empty, blank and ill-formed text") {
  CHECK(encode("").empty());
  CHECK(encode(" \n\t\r\v\f \u00a0\u3000\u2028").empty());
  CHECK(encode("a\xFF") == encode("a\uFFFD"));
  CHECK(encode("\xED\xA0\x80x") == encode("\uFFFD\uFFFD\uFFFDx"));
  CHECK(encode(std::string_view("\0", 1)).size() == 1);
}

TEST_CASE("clip tokenizer: normalisation") {
  CHECK(encode("CAFE\u0301") == encode("caf\u00e9"));
  CHECK(encode("\u212B") == encode("\u00e5"));                // angstrom sign composes to a letter, which is then lowered
  CHECK(encode("a\u0323\u0301") == encode("a\u0301\u0323"));  // canonical order of marks
  CHECK(encode("a \t\n  b") == encode("a b"));
  CHECK(encode("\u03A3\u03A3") == encode("\u03C3\u03C3"));  // no final sigma
  CHECK(encode("\u1100\u1161") == encode("\uAC00"));        // Hangul
}

TEST_CASE("clip tokenizer: special tokens keep their id inside any text, and only in their exact spelling") {
  const Ids eos{ClipTokenizer::kEos}, bos{ClipTokenizer::kBos};
  CHECK(encode("<|endoftext|>") == eos);
  CHECK(encode("<|startoftext|>") == bos);
  for (const std::string around : {"a", " a ", "'", "<", "<|", "|>", "1", "\u00e9", "\xFF", "e\u0301", ""}) {
    CAPTURE(around);
    Ids want = encode(around);
    want.push_back(ClipTokenizer::kEos);
    const Ids after = encode(around);
    want.insert(want.end(), after.begin(), after.end());
    CHECK(encode(around + "<|endoftext|>" + around) == want);
  }
  CHECK(encode("<|endoftext|><|startoftext|><|endoftext|>") == Ids{49407, 49406, 49407});
  CHECK(encode("e<|endoftext|>\u0301") != encode("\u00e9"));  // split first: nothing composes across a special token
  for (const std::string other : {"<|ENDOFTEXT|>", "<|endoftext|", "<|endoftext |>", "|endoftext|>"}) {
    for (const auto id : encode(other)) CHECK(id < ClipTokenizer::kBos);
  }
}

TEST_CASE("clip tokenizer: any bytes are accepted, in any size") {
  std::mt19937 rng(55);
  for (int round = 0; round < 1000; ++round) {
    CAPTURE(round);
    std::string bytes(rng() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(rng() & 0xFF);
    const Ids ids = encode(bytes);
    for (const auto id : ids) REQUIRE((id >= 0 && id < ClipTokenizer::kVocabulary));
    CHECK(encode(bytes) == ids);
  }
  // Quadratic merging or ordering of marks would take minutes here.
  const std::size_t n = 300'000;
  CHECK(encode(std::string(n, 'a')).size() < n);
  std::string marks;
  for (std::size_t i = 0; i < n; ++i) marks += i % 2 ? "\u0301" : "\u0323";
  CHECK(!encode(marks).empty());
}

TEST_CASE("clip tokenizer: one vocabulary for all threads") {
  std::vector<std::thread> threads;
  std::vector<Ids> got(4);
  for (auto& ids : got) threads.emplace_back([&ids] { ids = encode("a photo of a cat"); });
  for (auto& t : threads) t.join();
  for (const auto& ids : got) CHECK(ids == Ids{320, 1125, 539, 320, 2368});
}

}  // namespace sluice
