#include "golden/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "device/device_name.h"
#include "pipeline/plan_report.h"

namespace sluice::golden {

Rig::~Rig() {
  session.reset();
  memories.clear();
  store.reset();
}

std::vector<std::size_t> Rig::places() const {
  std::vector<std::size_t> all(devices.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void Rig::set_budget(std::optional<Bytes> budget) {
  session->release();
  for (auto& memory : memories) memory->set_budget(budget);
  for (auto& device : devices) device->ledger().reset_peak();  // what opening it and the budget before took
}

Status Rig::check_peaks(std::optional<Bytes> budget) const {
  for (const auto& device : devices)
    if (const Bytes peak = device->ledger().report().peak; budget && peak > *budget)
      return fail(Code::device_failed,
                  fmt::format("{} bytes of {} were used, the budget is {}", peak, device->info().name, *budget));
  return {};
}

Result<Rig> open_rig(const Setup& setup) {
  Rig rig;
  std::vector<Device*> devices;
  std::vector<DeviceMemory*> memories;
  SLUICE_ASSIGN(const auto names, split_device_list(setup.device));
  for (const auto& name : names) {
    SLUICE_ASSIGN(auto device, open_device(name));
    devices.push_back(device.get());
    rig.devices.push_back(std::move(device));
  }
  rig.store = std::make_unique<WeightStore>(devices, WeightStore::Options{});
  for (std::size_t i = 0; i < devices.size(); ++i) {
    rig.memories.push_back(
        std::make_unique<DeviceMemory>(*devices[i], *rig.store, DeviceMemory::Options{setup.budget, {}, {}, i}));
    memories.push_back(rig.memories.back().get());
  }
  rig.session = std::make_unique<Session>(memories, *rig.store, SessionOptions{});
  return rig;
}

Result<std::vector<std::optional<Bytes>>> budgets_for(const Setup& setup, Rig& rig, const std::vector<StageSpec>& specs) {
  std::vector<std::optional<Bytes>> out{setup.budget};
  if (!setup.sweep) return out;
  SLUICE_ASSIGN(Prepared* const prepared, rig.session->prepare(specs));
  Bytes smallest = 0, full = 0;
  for (const auto& device : plan_report(*prepared, *rig.store, *rig.session).devices) {
    smallest = std::max(smallest, device.smallest);
    full = std::max(full, device.full);
  }
  constexpr Bytes kBudgets = 8;
  out.clear();
  for (Bytes i = 0; i < kBudgets; ++i) out.emplace_back(smallest + (full - std::min(full, smallest)) * i / (kBudgets - 1));
  return out;
}

std::size_t output_index(const Model& model, Value value) {
  return static_cast<std::size_t>(std::find(model.outputs.begin(), model.outputs.end(), value) - model.outputs.begin());
}

std::size_t input_index(const Model& model, Value value) {
  const auto same = [value](const Input& input) { return input.value == value; };
  return static_cast<std::size_t>(std::find_if(model.inputs.begin(), model.inputs.end(), same) - model.inputs.begin());
}

namespace {

ComponentSpec spec_of(const char* name, const Component& component, std::vector<std::size_t> devices) {
  ComponentSpec spec{name, component.model.get(), {}, std::move(devices)};
  for (const auto& block : component.origins) {
    std::vector<WeightSource> sources;
    for (const auto& origin : block) sources.push_back({origin.file, origin.tensor});
    spec.sources.push_back(std::move(sources));
  }
  return spec;
}

Result<std::vector<LaneOutputs>> run_once(Session& session, const std::vector<StageSpec>& specs,
                                          const std::vector<LaneInputs>& lanes) {
  SLUICE_ASSIGN(Prepared* const prepared, session.prepare(specs));
  const auto sweep = [&]() -> Result<std::vector<LaneOutputs>> {
    SLUICE_TRY(session.bind(*prepared, CancelToken{}));
    SLUICE_ASSIGN(const auto runner, session.begin(*prepared, 0, CancelToken{}));
    return sweep_once(*runner, prepared->stages[0], lanes, true, [](int) {});
  };
  auto outputs = sweep();
  session.finish(outputs.has_value());
  return outputs;
}

bool same_bits(const std::vector<LaneOutputs>& a, const std::vector<LaneOutputs>& b) {
  for (std::size_t l = 0; l < a.size(); ++l) {
    for (std::size_t o = 0; o < a[l].size(); ++o) {
      if (a[l][o].size() != b[l][o].size() || std::memcmp(a[l][o].data(), b[l][o].data(), a[l][o].size() * sizeof(float)) != 0)
        return false;
    }
  }
  return a.size() == b.size();
}

}  // namespace

Result<std::vector<LaneOutputs>> run_network(const Setup& setup, const char* name, const Component& component,
                                             const std::vector<Shape>& shapes, const std::vector<LaneInputs>& lanes) {
  SLUICE_ASSIGN(auto rig, open_rig(setup));
  SLUICE_ASSIGN(const auto id, rig.store->add(spec_of(name, component, rig.places())));
  const std::vector<StageSpec> specs{{name, id, std::vector<LaneShape>(lanes.size(), LaneShape{shapes}), 1}};
  std::vector<LaneOutputs> first;
  SLUICE_ASSIGN(const auto budgets, budgets_for(setup, rig, specs));
  for (const auto budget : budgets) {
    rig.set_budget(budget);
    SLUICE_ASSIGN(auto outputs, run_once(*rig.session, specs, lanes));
    SLUICE_TRY(rig.check_peaks(budget));
    if (first.empty())
      first = std::move(outputs);
    else if (!same_bits(first, outputs))
      return fail(Code::device_failed, fmt::format("{} gives other bits with a budget of {} bytes", name, *budget));
  }
  return first;
}

}  // namespace sluice::golden
