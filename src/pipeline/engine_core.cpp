#include "pipeline/engine_core.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "device/device_name.h"
#include "pipeline/budget.h"
#include "pipeline/device_cache.h"

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

std::vector<Device*> pointers(const std::vector<std::unique_ptr<Device>>& devices) {
  std::vector<Device*> list;
  for (const auto& device : devices) list.push_back(device.get());
  return list;
}

std::vector<std::unique_ptr<DeviceMemory>> make_memories(const std::vector<std::unique_ptr<Device>>& devices,
                                                         const std::vector<std::optional<Bytes>>& allowed, WeightStore& store,
                                                         const LogSink& log) {
  std::vector<std::unique_ptr<DeviceMemory>> memories;
  for (std::size_t i = 0; i < devices.size(); ++i)
    memories.push_back(std::make_unique<DeviceMemory>(*devices[i], store, DeviceMemory::Options{allowed[i], log, {}, i}));
  return memories;
}

Result<std::size_t> find_device(const std::vector<std::unique_ptr<Device>>& devices, const std::string& name) {
  std::vector<std::string> known;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    known.push_back(devices[i]->info().name);
    if (name.empty() || known.back() == name) return i;
  }
  return fail(Code::invalid_argument, fmt::format("no device '{}' is in use; there are: {}", name, fmt::join(known, ", ")));
}

/// Errors: invalid_argument for a device that there is not.
Result<std::unique_ptr<Device>> open_with_threads(const std::string& name, std::optional<int> threads) {
  SLUICE_ASSIGN(const DeviceName parsed, parse_device_name(name));
  const bool said =
      std::any_of(parsed.options.begin(), parsed.options.end(), [](const auto& o) { return o.first == "threads"; });
  std::string full = name;
  if (parsed.base == "cpu" && threads && !said)
    full += fmt::format("{}threads={}", parsed.options.empty() ? ":" : ",", *threads);
  auto device = open_device(full);
  // A wrong word of the user's, not a missing file.
  if (!device && device.error().code == Code::not_found) return fail(Code::invalid_argument, device.error().message);
  return device;
}

}  // namespace

Result<EngineDevices> EngineDevices::open(const EngineOptions& options) {
  EngineDevices opened;
  SLUICE_ASSIGN(auto names, split_device_list(options.device));
  if (names == std::vector<std::string>{"auto"}) names = {default_device()};
  bool card = false, cpu = false;
  for (const auto& name : names) {
    auto device_or_error = open_with_threads(name, options.threads);
    if (!device_or_error) return fail_while(fmt::format("--device {}", options.device), std::move(device_or_error).error());
    auto device = *std::move(device_or_error);
    const DeviceInfo& info = device->info();
    if (const auto rates = cached_rates(info, options.cache_folder)) device->use_rates(*rates);
    for (const auto& other : opened.devices) {
      if (other->info().name == info.name)
        return fail(Code::invalid_argument,
                    fmt::format("--device {}: {} is named twice; simulated ones are told apart by a label, as sim:a,sim:b",
                                options.device, info.name));
      if (!info.device_id.empty() && other->info().device_id == info.device_id)
        return fail(Code::invalid_argument, fmt::format("--device {}: {} and {} are one card: name one of them", options.device,
                                                        other->info().name, info.name));
    }
    card = card || info.kind == DeviceKind::gpu || info.kind == DeviceKind::integrated;
    cpu = cpu || info.kind == DeviceKind::cpu;
    opened.devices.push_back(std::move(device));
    opened.budgets.push_back(opened.devices.size() == 1 ? options.device_budget : Budget{});
  }
  if (options.threads && !cpu)
    return fail(
        Code::invalid_argument,
        fmt::format("--threads sets the CPU device's threads and has no effect with --device {}: leave one of the two out",
                    options.device));
  if (names.size() > 1 && options.device_budget.kind != Budget::Kind::automatic)
    return fail(Code::invalid_argument, fmt::format("--device-budget: with several devices say whose it is, as {}=6GiB",
                                                    opened.devices[0]->info().name));
  for (const auto& [name, budget] : options.device_budgets) {
    auto found = find_device(opened.devices, name);
    if (!found) return fail_while("--device-budget", std::move(found).error());
    opened.budgets[*found] = budget;
  }
  if (card && !cpu) {
    SLUICE_ASSIGN(auto device, open_device("cpu"));
    opened.fallback = opened.devices.size();
    opened.devices.push_back(std::move(device));
    opened.budgets.push_back({});
  }
  std::vector<BudgetQuestion> questions;
  for (std::size_t i = 0; i < opened.devices.size(); ++i)
    questions.push_back({opened.budgets[i], opened.devices[i].get(), 0, i == opened.fallback});
  SLUICE_ASSIGN(opened.allowed, resolve_budgets(questions, options.reserve));
  return opened;
}

EngineCore::EngineCore(EngineOptions o, EngineDevices d)
    : options(std::move(o)),
      devices(std::move(d.devices)),
      fallback(d.fallback),
      store(pointers(devices), {tier_of(options.tier), options.host_budget, options.log, options.pinned_budget}),
      memories(make_memories(devices, d.allowed, store, options.log)),
      budgets(std::move(d.budgets)) {}

Status EngineCore::follow() {
  std::vector<BudgetQuestion> questions;
  {
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < devices.size(); ++i)
      questions.push_back({budgets[i], devices[i].get(), memories[i]->taken(), i == fallback});
  }
  SLUICE_ASSIGN(const auto allowed, resolve_budgets(questions, options.reserve));
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (questions[i].budget.kind != Budget::Kind::bytes)
      follow_memory(questions[i].budget, allowed[i], options.reserve, *memories[i]);
    else if (memories[i]->budget() != allowed[i])
      memories[i]->set_budget(allowed[i]);
  }
  return {};
}

void EngineCore::unload(bool host) {
  for (const auto& memory : memories) {
    const auto turn = memory->take_turn(CancelToken{});
    memory->unload(Leaving::idle);
  }
  if (!host) return;
  store.demote_idle();
  const std::lock_guard lock(mutex);
  for (IdleListener* session : sessions) session->on_idle();
}

Result<std::size_t> EngineCore::find(const std::string& device) const { return find_device(devices, device); }

Result<std::vector<std::size_t>> EngineCore::places_for(const ModelOptions& model, const std::string& component) const {
  std::vector<std::size_t> places;
  const auto named = model.place.find(component);
  std::string_view rest = named == model.place.end() ? std::string_view{} : std::string_view(named->second);
  while (named != model.place.end()) {
    const auto plus = rest.find('+');
    auto found = rest.empty() ? fail(Code::invalid_argument, "a device has no name") : find(std::string(rest.substr(0, plus)));
    if (!found) return fail_while(fmt::format("--place {}={}", component, named->second), std::move(found).error());
    if (std::find(places.begin(), places.end(), *found) == places.end()) places.push_back(*found);
    if (plus == std::string_view::npos) break;
    rest.remove_prefix(plus + 1);
  }
  for (std::size_t i = 0; i < devices.size() && named == model.place.end(); ++i)
    if (i != fallback) places.push_back(i);
  if (fallback && std::find(places.begin(), places.end(), *fallback) == places.end()) places.push_back(*fallback);
  return places;
}

}  // namespace sluice
