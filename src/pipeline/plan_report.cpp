#include "pipeline/plan_report.h"

#include <algorithm>

namespace sluice {
namespace {

BlockPlace place_of(const Block& block, Bytes weights, const WeightPlace& place, bool all_stay) {
  switch (place.kind) {
    case WeightPlace::Kind::none: return {block.name, weights, "none", "has no weights", {}};
    case WeightPlace::Kind::mapped: return {block.name, weights, "mapped", "used in place from the file's mapping", {}};
    case WeightPlace::Kind::resident:
      return {block.name,
              weights,
              "resident",
              all_stay ? "everything fits" : "fits beside the slots; spread so that the link never waits",
              {}};
    case WeightPlace::Kind::streamed: return {block.name, weights, "streamed", "copied each sweep through a slot", {}};
  }
  return {};
}

}  // namespace

PlanReport plan_report(const Prepared& prepared, const WeightStore& store, Session& session) {
  PlanReport report;
  for (const Prepared::Part& part : prepared.parts) {
    const DeviceMemory& memory = session.memory(part.device);
    const auto budget = memory.budget();
    const MemoryView view = memory.device().memory();
    DevicePlan& d = report.devices.emplace_back();
    d.device = memory.device().info().name;
    d.known = view.known;
    d.free = view.free;
    d.total = view.total;
    d.budget = budget.value_or(0);
    d.unlimited = !budget;
    d.backend = part.backend;
    d.planned = part.plan.taken() + part.backend;
    d.smallest = part.plan.smallest + part.backend;
    d.full = part.plan.full + part.backend;
  }
  const auto most = std::max_element(prepared.specs.begin(), prepared.specs.end(),
                                     [](const auto& a, const auto& b) { return a.sweeps < b.sweeps; });
  const DevicePlan& main = report.devices[prepared.where[static_cast<std::size_t>(most - prepared.specs.begin())][0].part];
  report.device = main.device;
  report.device_known = main.known;
  report.device_free = main.free;
  report.device_total = main.total;
  report.budget = main.budget;
  report.unlimited = main.unlimited;
  report.backend = main.backend;
  report.planned = main.planned;
  report.smallest = main.smallest;
  report.full = main.full;
  for (std::size_t s = 0; s < prepared.stages.size(); ++s) {
    const Stage& stage = prepared.stages[s];
    StageReport r;
    r.name = stage.spec().name;
    r.component = stage.model().name;
    r.lanes = stage.cost().lanes;
    r.sweeps = stage.cost().sweeps;
    r.weights = store.weight_bytes(stage.spec().component);
    bool all_stay = true;
    for (std::size_t i = 0; i < stage.sections().size(); ++i) {
      const StagePlan& plan = prepared.placement(s, i).plan;
      r.slots += plan.slot_bytes;
      r.state += plan.state_bytes;
      r.workspace += plan.workspace_bytes;
      r.transient += plan.transient;
      r.bytes_per_sweep += plan.bytes_per_sweep;
      r.in_flight = std::max(r.in_flight, plan.in_flight);
      r.step_s = std::max(r.step_s, plan.step_s);
      r.roofline_s = std::max(r.roofline_s, plan.roofline_s);
      r.lower_bound = std::max(r.lower_bound, stage.lower_bound(i));
      all_stay = all_stay && plan.copies.empty();
    }
    for (std::size_t b = 0; b < stage.blocks(); ++b) {
      const Bytes weights = stage.block_cost(b).weights;
      const WeightPlace& place = prepared.placement(s, stage.section_of(b)).places[b];
      if (place.kind == WeightPlace::Kind::resident || place.kind == WeightPlace::Kind::mapped) r.resident += weights;
      r.blocks.push_back(place_of(stage.model().blocks[b], weights, place, all_stay));
      r.blocks.back().device = session.memory(stage.device_of(b)).device().info().name;
      if (const auto why = session.why_elsewhere({stage.spec().component, static_cast<std::uint32_t>(b)}); !why.empty())
        r.blocks.back().why += "; " + why;
    }
    report.model_bytes += r.weights;
    report.stages.push_back(std::move(r));
  }
  return report;
}

}  // namespace sluice
