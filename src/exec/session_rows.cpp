// Weights whose rows lie spread over several devices, as a session plans and loads them.
#include <algorithm>

#include "device/row_split.h"
#include "exec/session.h"

namespace sluice {
namespace {
// Doublings until a budget that works is found, and halvings of what is between it and one that does not.
constexpr int kDoublings = 40, kHalvings = 24;
// Of the budget: closer a refusal's number need not be.
constexpr Bytes kCloseEnough = 1024;
}  // namespace

std::vector<ComponentId> Session::components_with_rows(const std::vector<StageSpec>& specs, bool loaded) const {
  std::vector<ComponentId> components;
  for (const auto& spec : specs)
    if (store_.splits_rows(spec.component) && store_.split_loaded(spec.component) == loaded &&
        std::find(components.begin(), components.end(), spec.component) == components.end())
      components.push_back(spec.component);
  return components;
}

std::vector<Bytes> Session::spread_bytes(const std::vector<StageSpec>& specs, bool pending) const {
  std::vector<Bytes> sums(memories_.size(), 0);
  for (const bool loaded : {false, true}) {
    if (loaded && pending) continue;
    for (const ComponentId component : components_with_rows(specs, loaded)) {
      const auto bytes = store_.split_bytes(component);
      for (std::size_t d = 0; d < sums.size(); ++d) sums[d] += bytes[d];
    }
  }
  return sums;
}

Status Session::share_rows(const std::vector<StageSpec>& specs) {
  for (const ComponentId component : components_with_rows(specs, false)) {
    const auto devices = store_.devices_of(component);
    SLUICE_ASSIGN(const bool changed, store_.share_rows(component, shares_by_budget(budgets_of(devices))));
    if (!changed) continue;
    std::erase_if(plans_, [&](const auto& p) {
      return std::any_of(p->specs.begin(), p->specs.end(), [&](const auto& spec) { return spec.component == component; });
    });
    // The blocks' images may hold other weights now.
    for (std::uint32_t b = 0; b < store_.model(component).blocks.size(); ++b)
      memories_[devices[0]]->give_up({component, b}, Leaving::closed);
  }
  return {};
}

Status Session::check_holders(const Prepared& prepared) {
  const auto pending = spread_bytes(prepared.specs, true);
  for (std::size_t d = 0; d < memories_.size(); ++d) {
    const bool runs = std::any_of(prepared.parts.begin(), prepared.parts.end(), [&](const auto& p) { return p.device == d; });
    const auto budget = budget_of(d);
    if (runs || prepared.spread[d] == 0 || !budget) continue;
    SLUICE_ASSIGN(const Bytes backend, memories_[d]->device().measure_backend({}));
    const Bytes needed = memories_[d]->set_aside(backend, {}) + pending[d];
    if (needed <= *budget) continue;
    refused_on_ = d;
    return fail(Code::over_budget, "the rows of weights that are spread do not fit " + memories_[d]->device().info().name,
                needed, *budget);
  }
  return {};
}

Error Session::raise_for_rows(const std::vector<StageSpec>& specs, Error refusal) {
  const auto pending = components_with_rows(specs, false);
  if (refusal.code != Code::over_budget || refusal.needed == 0 || pending.empty()) return refusal;
  // Shares follow budgets: whoever gets a larger budget gets more rows too. The device that computes also takes them off the
  // others, so a larger budget for it is always a way out.
  const std::size_t main = store_.devices_of(pending[0])[0];
  const auto budget = memories_[main]->budget();
  if (!budget) return refusal;
  const auto works = [&](Bytes bytes) {
    what_if_ = WhatIf{main, bytes};
    const bool yes = plan_anew(specs).has_value();
    what_if_.reset();
    return yes;
  };
  Bytes low = *budget, high = std::max(refused_on_ == main ? refusal.needed : 2 * *budget, *budget + 1);
  bool found = works(high);
  for (int i = 0; i < kDoublings && !found; ++i) {
    low = high;
    high *= 2;
    found = works(high);
  }
  for (int i = 0; i < kHalvings && found && high - low > high / kCloseEnough; ++i) {
    const Bytes middle = low + (high - low) / 2;
    (works(middle) ? high : low) = middle;
  }
  // The shares are those of the budgets that are.
  if (auto shared = share_rows(specs); !shared) return std::move(shared).error();
  if (!found) return refusal;
  refused_on_ = main;
  return {Code::over_budget,
          "the rows of spread weights and the smallest plan do not fit " + memories_[main]->device().info().name, high,
          *budget};
}

Status Session::load_rows(const std::vector<ComponentId>& components, const CancelToken& cancel) {
  for (const ComponentId component : components) {
    const auto bytes = store_.split_bytes(component);
    for (std::size_t d = 0; d < bytes.size(); ++d) {
      if (bytes[d] == 0) continue;
      SLUICE_ASSIGN(const Bytes backend, memories_[d]->device().measure_backend({}));
      SLUICE_TRY(memories_[d]->make_way(bytes[d], backend));
    }
    SLUICE_TRY(store_.load_split(component, cancel));
    spread_by_us_.push_back(component);
  }
  return {};
}

}  // namespace sluice
