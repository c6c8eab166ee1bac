#include "device/row_split.h"

#include <doctest/doctest.h>

#include <numeric>
#include <random>

using namespace sluice;

TEST_CASE("split_rows: every row on one card, ends at multiples of the tile, shares kept to within one") {
  std::mt19937 rng(1);
  for (int i = 0; i < 2000; ++i) {
    CAPTURE(i);
    const std::int64_t rows = 1 + static_cast<std::int64_t>(rng() % 20000);
    const std::int64_t tile = std::int64_t{1} << rng() % 8;
    std::vector<float> shares(1 + rng() % 5);
    float sum = 0;
    for (float& share : shares) sum += share = 0.05f + static_cast<float>(rng() % 100) / 100.0f;
    const auto counts = split_rows(rows, shares, tile);
    REQUIRE(counts.size() == shares.size());
    CHECK(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == rows);
    std::int64_t end = 0;
    for (std::size_t c = 0; c < counts.size(); ++c) {
      REQUIRE(counts[c] >= 0);
      end += counts[c];
      if (c + 1 < counts.size()) CHECK(end % tile == 0);
      // An end is off by less than a tile, and by one row for the rounding of floats.
      const double exact = static_cast<double>(rows) * shares[c] / sum;
      CHECK(std::abs(static_cast<double>(counts[c]) - exact) <= static_cast<double>(tile) + 1);
    }
  }
  // ggml's own example: two equal cards with tiles of 128.
  CHECK(split_rows(320, std::vector<float>{1, 1}, 128) == std::vector<std::int64_t>{128, 192});
  CHECK(split_rows(128, std::vector<float>{1, 1}, 128) == std::vector<std::int64_t>{0, 128});
}

TEST_CASE("split_bound: no tile takes more of any card, and none is needed twice") {
  for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_Q8_0})
    for (const std::int64_t width : {256, 512, 1280})
      for (const std::int64_t rows : {256, 320, 1024, 5120}) {
        const std::vector<float> shares{0.2f, 0.5f, 0.3f};
        const auto bound = split_bound(type, width, rows, shares);
        Bytes sum = 0;
        for (const std::int64_t tile : {32, 64, 128}) {
          const auto counts = split_rows(rows, shares, tile);
          for (std::size_t c = 0; c < counts.size(); ++c) CHECK(split_size(type, width, counts[c]) <= bound[c]);
        }
        for (const Bytes bytes : bound) sum += bytes;
        const Bytes whole = static_cast<Bytes>(rows) * ggml_row_size(type, width);
        CHECK(sum >= whole);
        CHECK(sum <= whole + 3 * (static_cast<Bytes>(kLargestRowTile) * ggml_row_size(type, width) + 2 * KiB));
      }
  CHECK(split_size(GGML_TYPE_F16, 256, 0) == 0);
  CHECK(split_size(GGML_TYPE_F16, 512, 2) == 2048);
  CHECK(split_size(GGML_TYPE_F16, 256, 2) == 1536);  // one row's padding to 512 elements
}

TEST_CASE("shares_by_budget: in proportion; unlimited as the largest of the others; equal where all are") {
  using Budgets = std::vector<std::optional<Bytes>>;
  CHECK(shares_by_budget(Budgets{3 * GiB, 1 * GiB}) == std::vector<float>{0.75f, 0.25f});
  CHECK(shares_by_budget(Budgets{std::nullopt, std::nullopt}) == std::vector<float>{0.5f, 0.5f});
  CHECK(shares_by_budget(Budgets{std::nullopt, 2 * GiB, 4 * GiB}) == std::vector<float>{0.4f, 0.2f, 0.4f});
  CHECK(shares_by_budget(Budgets{0, GiB}) == std::vector<float>{0, 1});
}
