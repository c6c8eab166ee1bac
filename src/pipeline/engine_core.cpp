#include "pipeline/engine_core.h"

#include "pipeline/budget.h"

namespace sluice {
namespace {

HostTier tier_of(Tier tier) {
  switch (tier) {
    case Tier::read: return HostTier::read;
    case Tier::disk: return HostTier::disk;
    case Tier::automatic:
    case Tier::mapped: break;
  }
  return HostTier::mapped;
}

}  // namespace

EngineCore::EngineCore(EngineOptions o, std::unique_ptr<Device> d, std::optional<Bytes> device_budget)
    : options(std::move(o)),
      device(std::move(d)),
      store(*device, {tier_of(options.tier), options.host_budget, options.log, options.pinned_budget}),
      memory(*device, store, {device_budget, options.log, {}}),
      budget(options.device_budget) {}

Status EngineCore::follow() {
  const Budget now = [&] {
    const std::lock_guard lock(mutex);
    return budget;
  }();
  if (now.kind == Budget::Kind::bytes) {
    if (memory.budget() != now.value) memory.set_budget(now.value);
    return {};
  }
  return follow_memory(now, options.reserve, memory);
}

void EngineCore::unload(bool host) {
  const auto turn = memory.take_turn(CancelToken{});
  memory.unload(Leaving::idle);
  if (!host) return;
  store.demote_idle();
  const std::lock_guard lock(mutex);
  for (IdleListener* session : sessions) session->on_idle();
}

}  // namespace sluice
