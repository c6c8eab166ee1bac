#include "residency/host_cache.h"

#include <algorithm>

namespace sluice {

const std::vector<float>* HostCache::find(const std::string& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return nullptr;
  found->second.used = ++now_;
  return &found->second.values;
}

void HostCache::drop_oldest() {
  entries_.erase(std::min_element(entries_.begin(), entries_.end(),
                                  [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
}

void HostCache::put(const std::string& name, std::vector<float> values) {
  entries_.erase(name);
  while (entries_.size() >= most_ && !entries_.empty()) drop_oldest();
  const Bytes bytes = values.size() * sizeof(float);
  for (;;) {
    if (auto lease = ledger_.reserve(Use::cache, bytes)) {
      entries_.emplace(name, Entry{std::move(values), *std::move(lease), ++now_});
      return;
    }
    if (entries_.empty()) return;
    drop_oldest();
  }
}

bool HostCache::drop() {
  const bool any = !entries_.empty();
  entries_.clear();
  return any;
}

Bytes HostCache::bytes() const {
  Bytes sum = 0;
  for (const auto& [name, entry] : entries_) sum += entry.lease.size();
  return sum;
}

}  // namespace sluice
