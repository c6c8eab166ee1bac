#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/ledger.h"

namespace sluice {

/// Results that a session keeps in host memory between requests and can make again: embeddings of prompts. Leased as
/// Use::cache; the least recently used go first. Not thread safe.
class HostCache {
 public:
  /// `ledger` outlives the cache.
  HostCache(Ledger& ledger, std::size_t entries_at_most) : ledger_(ledger), most_(entries_at_most) {}

  /// The values under `name`, until the next `put` or `drop`. Counts as a use.
  const std::vector<float>* find(const std::string& name);
  /// Keeps values where the ledger has room for them beside at least the older entries gone; else nothing is kept.
  void put(const std::string& name, std::vector<float> values);
  /// Everything goes. Whether there was anything.
  bool drop();
  Bytes bytes() const;
  std::size_t entries() const { return entries_.size(); }

 private:
  struct Entry {
    std::vector<float> values;
    Lease lease;
    std::uint64_t used = 0;
  };
  void drop_oldest();

  Ledger& ledger_;
  const std::size_t most_;
  std::map<std::string, Entry> entries_;
  std::uint64_t now_ = 0;
};

}  // namespace sluice
