#include "golden/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "pipeline/plan_report.h"

namespace sluice::golden {

Rig::~Rig() {
  session.reset();
  memory.reset();
  store.reset();
}

Result<Rig> open_rig(const Setup& setup) {
  Rig rig;
  SLUICE_ASSIGN(rig.device, open_device(setup.device));
  rig.store = std::make_unique<WeightStore>(*rig.device, WeightStore::Options{});
  rig.memory = std::make_unique<DeviceMemory>(*rig.device, *rig.store, DeviceMemory::Options{setup.budget, {}, {}});
  rig.session = std::make_unique<Session>(std::vector<DeviceMemory*>{rig.memory.get()}, *rig.store, SessionOptions{});
  return rig;
}

std::vector<std::optional<Bytes>> budgets_for(const Setup& setup, Bytes smallest, Bytes full) {
  if (!setup.sweep) return {setup.budget};
  constexpr Bytes kBudgets = 8;
  std::vector<std::optional<Bytes>> out;
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

ComponentSpec spec_of(const char* name, const Component& component) {
  ComponentSpec spec{name, component.model.get(), {}};
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
  SLUICE_ASSIGN(const auto id, rig.store->add(spec_of(name, component)));
  const std::vector<StageSpec> specs{{name, id, std::vector<LaneShape>(lanes.size(), LaneShape{shapes}), 1}};
  Bytes smallest = 0, full = 0;
  if (setup.sweep) {
    SLUICE_ASSIGN(Prepared* const prepared, rig.session->prepare(specs));
    const auto report = plan_report(*prepared, *rig.store, *rig.session);
    smallest = report.smallest;
    full = report.full;
  }
  std::vector<LaneOutputs> first;
  for (const auto budget : budgets_for(setup, smallest, full)) {
    rig.session->release();
    rig.memory->set_budget(budget);
    rig.device->ledger().reset_peak();  // what opening the device and the budget before took
    SLUICE_ASSIGN(auto outputs, run_once(*rig.session, specs, lanes));
    if (budget && rig.device->ledger().report().peak > *budget) {
      return fail(Code::device_failed,
                  fmt::format("{} used {} bytes of a budget of {}", name, rig.device->ledger().report().peak, *budget));
    }
    if (first.empty())
      first = std::move(outputs);
    else if (!same_bits(first, outputs))
      return fail(Code::device_failed, fmt::format("{} gives other bits with a budget of {} bytes", name, *budget));
  }
  return first;
}

}  // namespace sluice::golden
