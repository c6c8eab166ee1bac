#include "pipeline/plan_report.h"

#include <algorithm>

namespace sluice {
namespace {

BlockPlace place_of(const Block& block, Bytes weights, const WeightPlace& place, bool all_stay) {
  switch (place.kind) {
    case WeightPlace::Kind::none: return {block.name, weights, "none", "has no weights"};
    case WeightPlace::Kind::mapped: return {block.name, weights, "mapped", "used in place from the file's mapping"};
    case WeightPlace::Kind::resident:
      return {block.name, weights, "resident",
              all_stay ? "everything fits" : "fits beside the slots; spread so that the link never waits"};
    case WeightPlace::Kind::streamed: return {block.name, weights, "streamed", "copied each sweep through a slot"};
  }
  return {};
}

}  // namespace

PlanReport plan_report(const Prepared& prepared, const WeightStore& store, Session& session) {
  PlanReport report;
  const auto most = std::max_element(prepared.specs.begin(), prepared.specs.end(),
                                     [](const auto& a, const auto& b) { return a.sweeps < b.sweeps; });
  const Prepared::Part& part = prepared.parts[prepared.part_of[static_cast<std::size_t>(most - prepared.specs.begin())]];
  const DeviceMemory& memory = session.memory(part.device);
  const auto budget = memory.budget();
  const MemoryView view = memory.device().memory();
  report.device = memory.device().info().name;
  report.device_known = view.known;
  report.device_free = view.free;
  report.device_total = view.total;
  report.budget = budget.value_or(0);
  report.unlimited = !budget;
  report.backend = part.backend;
  report.planned = part.plan.taken() + part.backend;
  report.smallest = part.plan.smallest + part.backend;
  report.full = part.plan.full + part.backend;
  for (std::size_t s = 0; s < prepared.stages.size(); ++s) {
    const Stage& stage = prepared.stages[s];
    const StagePlacement& placement = prepared.placement(s);
    const StagePlan& plan = placement.plan;
    StageReport r;
    r.name = stage.spec().name;
    r.component = stage.model().name;
    r.lanes = stage.cost().lanes;
    r.sweeps = stage.cost().sweeps;
    r.weights = store.weight_bytes(stage.spec().component);
    r.slots = plan.slot_bytes;
    r.state = plan.state_bytes;
    r.workspace = plan.workspace_bytes;
    r.transient = plan.transient;
    r.bytes_per_sweep = plan.bytes_per_sweep;
    r.in_flight = plan.in_flight;
    r.step_s = plan.step_s;
    r.roofline_s = plan.roofline_s;
    r.lower_bound = stage.lower_bound();
    const bool all_stay = plan.copies.empty();
    for (std::size_t b = 0; b < stage.blocks(); ++b) {
      const Bytes weights = stage.cost().blocks[b].weights;
      const auto kind = placement.places[b].kind;
      if (kind == WeightPlace::Kind::resident || kind == WeightPlace::Kind::mapped) r.resident += weights;
      r.blocks.push_back(place_of(stage.model().blocks[b], weights, placement.places[b], all_stay));
    }
    report.model_bytes += r.weights;
    report.stages.push_back(std::move(r));
  }
  return report;
}

}  // namespace sluice
