#include "support/residency_rules.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::test {
namespace {

enum Rank { kCache, kOwnStreamed, kOther, kDemoted };

Rank rank_of(const Tenant& t, const Asked& asked) {
  if (t.cache) return kCache;
  if (asked.own.contains(t.id.component)) return kOwnStreamed;
  return t.host_copy ? kOther : kDemoted;
}

/// Whether `a` has to leave before `b` for certain.
bool leaves_before(const Tenant& a, const Tenant& b, const Asked& asked) {
  const Rank ra = rank_of(a, asked), rb = rank_of(b, asked);
  if (ra != rb) return ra < rb;
  if (!a.cache && a.id.component == b.id.component) return a.id.block > b.id.block;
  return a.used.to < b.used.from;
}

bool required(const Tenant& t, const Asked& asked) { return asked.wanted.contains(t.id); }

/// On a shelf, and planned in the zone: it may have to go there by way of the host. Or of a stage that will not run.
bool either(const Tenant& t, const Asked& asked) { return asked.in_zone.contains(t.id) || asked.either.contains(t.id); }

bool is_leaving(Move::Kind kind) {
  return kind == Move::Kind::given_up || kind == Move::Kind::demoted || kind == Move::Kind::cache_dropped;
}

}  // namespace

std::string name_of(BlockId id) {
  return id.component >= kFirstCache ? fmt::format("cache {}", id.block) : fmt::format("{}.{}", id.component, id.block);
}

const Tenant* DeviceState::find(BlockId id) const {
  const auto found = std::ranges::find(tenants, id, &Tenant::id);
  return found == tenants.end() ? nullptr : &*found;
}

std::vector<std::string> broken_rules(const DeviceState& before, const Asked& asked, const std::vector<SeenMove>& moves) {
  std::vector<std::string> broken;
  const auto say = [&]<typename... A>(fmt::format_string<A...> format, A&&... a) {
    broken.push_back(fmt::format(format, std::forward<A>(a)...));
  };
  std::vector<const Tenant*> left;
  Bytes given = 0;
  for (const auto& [move, host_copy] : moves) {
    if (!is_leaving(move.kind) || (asked.may_lose && move.why == Leaving::lost)) continue;
    const Tenant* t = before.find(move.block);
    if (!t || (!t->loaded && !t->cache)) {
      say("{} left, which was not there", name_of(move.block));
      continue;
    }
    if (t->fixed) say("{} left though held or flagged", name_of(t->id));
    if (!t->cache && (move.kind == Move::Kind::given_up) != host_copy)
      say("{} was {} {} a host copy", name_of(t->id), host_copy ? "demoted" : "given up", host_copy ? "with" : "without");
    if (t->in_zone || (t->cache && asked.driver_refused)) continue;
    if (required(*t, asked)) say("{} left though required", name_of(t->id));
    left.push_back(t);
    given += t->size;
  }

  Bytes least = asked.zone + asked.backend;
  for (const auto& [id, size] : asked.wanted)
    if (const Tenant* t = before.find(id); !t || (t->in_zone && !t->fixed)) least += size;  // from the zone to a shelf: anew
  for (const auto& t : before.tenants)
    if (!t.in_zone || t.fixed) least += t.size;  // what is held in the zone may have to be carried to a shelf
  const Bytes missing = before.budget && least > *before.budget ? least - *before.budget : 0;
  if (missing == 0 && given > 0) say("it fits (needs {} of {}), yet {} bytes left", least, *before.budget, given);
  for (const Tenant* t : left)
    if (missing > 0 && given - t->size >= missing)
      say("{} ({}) left in vain: {} were missing, {} given up", name_of(t->id), t->size, missing, given);

  for (std::size_t i = 0; i < left.size(); ++i) {
    if (either(*left[i], asked)) continue;
    for (std::size_t j = 0; j < i; ++j)
      if (!either(*left[j], asked) && leaves_before(*left[i], *left[j], asked))
        say("{} left after {}", name_of(left[i]->id), name_of(left[j]->id));
    for (const auto& t : before.tenants) {
      if (t.in_zone || t.fixed || (t.cache && asked.driver_refused) || required(t, asked) || either(t, asked) ||
          (!t.loaded && !t.cache))
        continue;
      if (std::ranges::find(left, &t) != left.end() || t.size < left[i]->size) continue;
      if (leaves_before(t, *left[i], asked)) say("{} left instead of {}", name_of(left[i]->id), name_of(t.id));
    }
  }
  return broken;
}

}  // namespace sluice::test
