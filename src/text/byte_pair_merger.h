#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace sluice {

/// Byte-pair merging over symbol ids: the pair of neighbours with the lowest rank is joined, leftmost first, until none is
/// left. Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units", algorithm 1.
class BytePairMerger {
 public:
  /// Pairs are added in rank order, the most frequent first. A pair that is there already keeps its first rank.
  void add(std::int32_t left, std::int32_t right, std::int32_t merged);

  /// `symbols`, merged as far as the pairs allow. Cost: O(n log n).
  std::vector<std::int32_t> merge(std::vector<std::int32_t> symbols) const;

 private:
  struct Merge {
    std::int32_t rank, merged;
  };
  const Merge* find(std::int32_t left, std::int32_t right) const;

  std::unordered_map<std::uint64_t, Merge> merges_;
};

}  // namespace sluice
