#include "text/byte_pair_merger.h"

#include <queue>
#include <tuple>

namespace sluice {
namespace {

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

/// A pair seen at some moment; stale once either symbol has changed.
struct Candidate {
  std::int32_t rank;
  std::size_t at;
  std::int32_t left, right, merged;
  bool operator>(const Candidate& other) const { return std::tie(rank, at) > std::tie(other.rank, other.at); }
};

}  // namespace

void BytePairMerger::add(std::int32_t left, std::int32_t right, std::int32_t merged) {
  merges_.try_emplace(key_of(left, right), Merge{static_cast<std::int32_t>(merges_.size()), merged});
}

const BytePairMerger::Merge* BytePairMerger::find(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<std::int32_t> BytePairMerger::merge(std::vector<std::int32_t> symbols) const {
  constexpr std::int32_t kGone = -1;
  const std::size_t n = symbols.size();
  std::vector<std::size_t> next(n), previous(n);
  for (std::size_t i = 0; i < n; ++i) next[i] = i + 1, previous[i] = i == 0 ? n : i - 1;

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](std::size_t at) {
    if (at >= n || next[at] >= n) return;
    const std::int32_t left = symbols[at], right = symbols[next[at]];
    if (const Merge* m = find(left, right)) queue.push({m->rank, at, left, right, m->merged});
  };
  for (std::size_t i = 0; i < n; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    const std::size_t right = next[c.at];
    if (symbols[c.at] != c.left || right >= n || symbols[right] != c.right) continue;
    symbols[c.at] = c.merged;
    symbols[right] = kGone;
    next[c.at] = next[right];
    if (next[right] < n) previous[next[right]] = c.at;
    offer(c.at);
    offer(previous[c.at]);
  }
  std::erase(symbols, kGone);
  return symbols;
}

}  // namespace sluice
