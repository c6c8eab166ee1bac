#include "text/byte_pair_merger.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

namespace sluice {
namespace {

using Symbols = std::vector<std::int32_t>;

/// The algorithm as written: find the best pair, join all its places from the left, repeat.
Symbols merge_plainly(const std::vector<Symbols>& pairs, Symbols s) {
  while (true) {
    std::size_t best = pairs.size();
    for (std::size_t i = 0; i + 1 < s.size(); ++i) {
      for (std::size_t rank = 0; rank < best; ++rank) {
        if (pairs[rank][0] == s[i] && pairs[rank][1] == s[i + 1]) best = rank;
      }
    }
    if (best == pairs.size()) return s;
    Symbols out;
    for (std::size_t i = 0; i < s.size(); ++i) {
      const bool here = i + 1 < s.size() && s[i] == pairs[best][0] && s[i + 1] == pairs[best][1];
      out.push_back(here ? pairs[best][2] : s[i]);
      i += here;
    }
    s = std::move(out);
  }
}

}  // namespace

TEST_CASE("byte-pair merging: equal to the algorithm as written, for random merge lists and words") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    std::vector<Symbols> pairs;
    BytePairMerger merger;
    std::int32_t symbols = 2 + static_cast<std::int32_t>(rng() % 3);
    const std::int32_t letters = symbols;
    for (int i = 0; i < 12; ++i) {
      const auto pick = [&] { return static_cast<std::int32_t>(rng() % static_cast<unsigned>(symbols)); };
      const Symbols pair{pick(), pick(), symbols};
      if (std::any_of(pairs.begin(), pairs.end(), [&](const Symbols& p) { return p[0] == pair[0] && p[1] == pair[1]; }))
        continue;
      pairs.push_back(pair);
      merger.add(pair[0], pair[1], symbols++);
    }
    for (int word = 0; word < 20; ++word) {
      Symbols s(rng() % 40);
      for (auto& v : s) v = static_cast<std::int32_t>(rng() % static_cast<unsigned>(letters));
      CHECK(merger.merge(s) == merge_plainly(pairs, s));
    }
  }
}

}  // namespace sluice
