#include "exec/pack.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace sluice {
namespace {

/// An extent with its size rounded up and its time as start and length, so that a wrap needs no special case.
struct Item {
  Bytes size = 0;
  int start = 0, length = 0;
  Bytes busiest = 0;  ///< load of the busiest tick it lives through
};

bool share_a_tick(const Item& a, const Item& b, int period) {
  int ahead = b.start - a.start;
  if (ahead < 0) ahead += period;
  return ahead < a.length || (ahead > 0 && period - ahead < b.length);
}

/// The lowest allowed offset from `offset` on, were everything free.
Bytes allowed(Bytes offset, Bytes size, Bytes chunk) {
  if (chunk == 0 || offset / chunk == (offset + size - 1) / chunk) return offset;
  return (offset + chunk - 1) / chunk * chunk;
}

enum class Fit { first, best };

/// One attempt: places the items in the given order.
class Attempt {
 public:
  Attempt(const std::vector<Item>& items, int period, Bytes chunk) : items_(items), period_(period), chunk_(chunk) {
    offsets_.resize(items.size());
    placed_.reserve(items.size());
    double lived = 0;
    for (const auto& item : items) lived += item.length;
    const double n = static_cast<double>(items.size());
    // Short lives meet few others: looking them up tick by tick then beats looking at everyone.
    sparse_ = n > 24 && lived / n * lived / period * 2 < n;
    if (!sparse_) return;
    seen_.resize(items.size());
    first_.resize(static_cast<std::size_t>(period) + 1);
    count_.resize(static_cast<std::size_t>(period));
    for (const auto& item : items) for_each_tick(item, [&](int tick) { ++first_[tick + 1]; });
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    at_tick_.resize(first_.back());
  }

  /// Returns the size, or some size ≥ `give_up_at` as soon as it is clear that it is no better.
  Bytes run(const std::vector<std::uint32_t>& order, Fit fit, Bytes give_up_at) {
    placed_.clear();
    std::fill(count_.begin(), count_.end(), 0);
    Bytes size = 0;
    for (const auto index : order) {
      const Item& item = items_[index];
      const Bytes at = sparse_ && fit == Fit::first ? find_first(item) : find(item, fit);
      offsets_[index] = at;
      if (at + item.size > size) {
        size = at + item.size;
        top_ = index;
      }
      if (size >= give_up_at) return size;
      insert({at, at + item.size, index});
    }
    return size;
  }
  const std::vector<Bytes>& offsets() const { return offsets_; }
  /// The item that reaches highest.
  std::uint32_t top() const { return top_; }

 private:
  struct Placed {
    Bytes offset, end;
    std::uint32_t index;
  };

  static bool below(const Placed& a, const Placed& b) { return a.offset < b.offset; }

  void insert(const Placed& entry) {
    if (!sparse_) {
      placed_.insert(std::upper_bound(placed_.begin(), placed_.end(), entry, below), entry);
      return;
    }
    for_each_tick(items_[entry.index], [&](int tick) { at_tick_[first_[tick] + count_[tick]++] = entry; });
  }

  template <typename Visit>
  void for_each_tick(const Item& item, Visit visit) const {
    for (int i = 0, tick = item.start; i < item.length; ++i, tick = tick + 1 == period_ ? 0 : tick + 1) visit(tick);
  }

  template <typename Visit>
  void for_each_met(const Item& item, Visit visit) const {
    for_each_tick(item, [&](int tick) {
      for (auto i = first_[tick], end = i + count_[tick]; i < end; ++i) visit(at_tick_[i]);
    });
  }

  /// Everything placed that the item meets (and perhaps more), by offset.
  const std::vector<Placed>& neighbours(const Item& item) {
    if (!sparse_) return placed_;
    ++stamp_;
    met_.clear();
    for_each_met(item, [&](const Placed& other) {
      if (seen_[other.index] == stamp_) return;
      seen_[other.index] = stamp_;
      met_.push_back(other);
    });
    std::sort(met_.begin(), met_.end(), below);
    return met_;
  }

  /// First fit without sorting whom it meets: whoever is in the way pushes it up, until nobody is.
  Bytes find_first(const Item& item) const {
    Bytes at = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for_each_met(item, [&](const Placed& other) {
        if (other.offset >= at + item.size || other.end <= at) return;
        at = allowed(other.end, item.size, chunk_);
        moved = true;
      });
    }
    return at;
  }

  Bytes find(const Item& item, Fit fit) {
    Bytes low = 0, found = 0, tightest = UINT64_MAX;
    for (const auto& other : neighbours(item)) {
      if (other.end <= low || (!sparse_ && !share_a_tick(item, items_[other.index], period_))) continue;
      if (other.offset > low) {
        const Bytes at = allowed(low, item.size, chunk_);
        if (at + item.size <= other.offset) {
          if (fit == Fit::first) return at;
          if (other.offset - low < tightest) {
            tightest = other.offset - low;
            found = at;
          }
        }
      }
      low = other.end;
    }
    return tightest != UINT64_MAX ? found : allowed(low, item.size, chunk_);
  }

  const std::vector<Item>& items_;
  int period_;
  Bytes chunk_;
  std::vector<Bytes> offsets_;
  std::vector<Placed> placed_;  ///< by offset, unless sparse
  bool sparse_ = false;
  // If sparse: what lives at each tick, and where each tick's part begins and how long it is.
  std::vector<Placed> at_tick_;
  std::vector<std::uint32_t> first_, count_;
  std::vector<Placed> met_;
  std::vector<std::uint64_t> seen_;
  std::uint64_t stamp_ = 0;
  std::uint32_t top_ = 0;
};

Item to_item(const Extent& extent, int period, Bytes alignment) {
  const int length = (extent.to - extent.from + period) % period + 1;
  return {align_up(extent.size, alignment), extent.from, length, 0};
}

/// Bytes in use at each tick.
std::vector<Bytes> loads(const std::vector<Item>& items, int period) {
  std::vector<Bytes> change(static_cast<std::size_t>(period) + 1, 0);  // differences wrap around 2^64 and back
  for (const auto& item : items) {
    const int end = item.start + item.length;
    change[item.start] += item.size;
    change[std::min(end, period)] -= item.size;
    if (end > period) {
      change[0] += item.size;
      change[end - period] -= item.size;
    }
  }
  change.pop_back();
  std::partial_sum(change.begin(), change.end(), change.begin());
  return change;
}

Bytes highest(const std::vector<Bytes>& values) { return values.empty() ? 0 : *std::max_element(values.begin(), values.end()); }

}  // namespace

Bytes packing_load(std::span<const Extent> extents, int period, Bytes alignment) {
  std::vector<Item> items;
  items.reserve(extents.size());
  for (const auto& extent : extents) items.push_back(to_item(extent, period, alignment));
  return highest(loads(items, period));
}

Packing pack_extents(std::span<const Extent> extents, int period, Bytes alignment, Bytes chunk, int rounds, Bytes limit) {
  std::vector<Item> items;
  items.reserve(extents.size());
  for (const auto& extent : extents) items.push_back(to_item(extent, period, alignment));
  const auto load = loads(items, period);
  const Bytes floor = highest(load);
  for (auto& item : items)
    for (int i = 0; i < item.length; ++i) item.busiest = std::max(item.busiest, load[(item.start + i) % period]);

  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < items.size(); ++i)
    if (items[i].size > 0) all.push_back(i);
  Packing best{std::vector<Bytes>(items.size(), 0), UINT64_MAX};
  const Bytes hopeless = limit < UINT64_MAX / 2 ? limit + limit / 4 + 1 : UINT64_MAX;
  if (floor >= hopeless) return best;
  std::vector<std::uint32_t> best_order;
  Attempt attempt(items, period, chunk);
  std::uint32_t best_top = 0;
  const auto tried = [&](const std::vector<std::uint32_t>& order, Fit fit) {
    const Bytes give_up_at = std::min(best.size, hopeless);
    const Bytes size = attempt.run(order, fit, give_up_at);
    if (size < give_up_at) {
      best = {attempt.offsets(), size};
      best_order = order;
      best_top = attempt.top();
    }
    return best.size <= floor;
  };
  const auto sorted = [&](auto key) {
    using Key = decltype(key(items[0]));
    std::vector<std::pair<Key, std::uint32_t>> keyed;
    keyed.reserve(all.size());
    for (const auto i : all) keyed.push_back({key(items[i]), i});
    std::sort(keyed.begin(), keyed.end(),
              [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
    std::vector<std::uint32_t> order;
    order.reserve(all.size());
    for (const auto& entry : keyed) order.push_back(entry.second);
    return order;
  };
  std::vector<std::vector<std::uint32_t>> orders;
  const auto try_sorted = [&](auto key) {
    orders.push_back(sorted(key));
    return tried(orders.back(), Fit::first);
  };
  if (try_sorted([](const Item& i) { return std::pair(i.size, Bytes(i.length)); }) ||
      try_sorted([](const Item& i) { return std::pair(Bytes(i.length), i.size); }) ||
      try_sorted([](const Item& i) { return std::pair(i.busiest, i.size); }) ||
      try_sorted([](const Item& i) { return std::pair(i.busiest, Bytes(i.length)); }) ||
      try_sorted([](const Item& i) { return static_cast<double>(i.size) * i.length; }) ||
      try_sorted([period](const Item& i) { return period - i.start; }))
    return best;
  if (rounds >= static_cast<int>(orders.size()))
    for (const auto& order : orders)
      if (tried(order, Fit::best)) return best;

  if (best.size == UINT64_MAX) return best;
  // What sticks out came too late: let it choose first, and again, as long as that is affordable.
  const double cost = static_cast<double>(all.size()) * static_cast<double>(all.size());
  rounds = static_cast<int>(std::min<double>(rounds, 2e6 / std::max(1.0, cost)));
  auto order = best_order;
  std::uint32_t top = best_top;
  std::uint32_t noise = 1;  // a fixed sequence: same extents, same packing
  for (int i = 0; i < rounds; ++i) {
    if (i % 16 == 15) {
      order = best_order;
      top = best_top;
    }
    const auto at = std::find(order.begin(), order.end(), top) - order.begin();
    noise = noise * 1664525u + 1013904223u;
    // Half way to the front at first: a jump to the very front undoes the order among the large ones.
    const auto to = i % 16 < 4 ? at / 2 : static_cast<std::ptrdiff_t>((noise >> 8) % static_cast<std::uint32_t>(at + 1));
    std::rotate(order.begin() + to, order.begin() + at, order.begin() + at + 1);
    const Bytes size = attempt.run(order, Fit::first, UINT64_MAX);
    top = attempt.top();
    if (size > best.size) continue;
    best_order = order;
    best_top = top;
    if (size == best.size) continue;
    best = {attempt.offsets(), size};
    if (size <= floor) break;
  }
  return best;
}

}  // namespace sluice
