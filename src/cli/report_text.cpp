#include "cli/report_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::cli {
namespace {

std::string size(Bytes bytes) { return format_bytes(bytes); }
std::string exact(Bytes bytes) { return fmt::format("{} ({} bytes)", format_bytes(bytes), bytes); }

std::string seconds(double s) {
  if (s <= 0) return "-";
  if (s < 1e-3) return fmt::format("{:.0f} us", s * 1e6);
  if (s < 1) return fmt::format("{:.3g} ms", s * 1e3);
  return fmt::format("{:.3g} s", s);
}

const StageRun* find_run(const Generated& generated, const std::string& name) {
  for (const auto& run : generated.runs) {
    if (run.name == name) return &run;
  }
  return nullptr;
}

/// One device's share of a plan, for plans on several.
std::string device_line(const DevicePlan& d, const PlanReport& plan) {
  Bytes weights = 0;
  std::size_t blocks = 0;
  for (const auto& stage : plan.stages)
    for (const auto& block : stage.blocks)
      if (block.device == d.device) {
        weights += block.weights;
        ++blocks;
      }
  return fmt::format("  {:<10} {} blocks of {}; budget {}, planned {}, smallest {}\n", d.device, blocks, size(weights),
                     d.unlimited ? std::string("unlimited") : size(d.budget), size(d.planned), exact(d.smallest));
}

void add_blocks(std::string& out, const StageReport& stage, bool every_block, bool several) {
  for (std::size_t first = 0; first < stage.blocks.size();) {
    std::size_t last = first;
    Bytes weights = stage.blocks[first].weights;
    const auto& head = stage.blocks[first];
    while (!every_block && last + 1 < stage.blocks.size() && stage.blocks[last + 1].place == head.place &&
           stage.blocks[last + 1].why == head.why && stage.blocks[last + 1].device == head.device) {
      weights += stage.blocks[++last].weights;
    }
    const auto name =
        last == first ? head.name : fmt::format("{} … {} ({} blocks)", head.name, stage.blocks[last].name, last - first + 1);
    out += fmt::format("    {:<9} {:>9}  {}{}{}\n", head.place, size(weights), several ? head.device + ": " : std::string{},
                       name, head.why.empty() ? "" : ": " + head.why);
    first = last + 1;
  }
}

}  // namespace

std::string plan_text(const PlanReport& plan, bool every_block) {
  const bool several = plan.devices.size() > 1;
  std::string names = plan.device;
  if (several) names.clear();
  for (const auto& d : plan.devices)
    if (several) names += (names.empty() ? "" : " and ") + d.device;
  std::string out = fmt::format("{} x {} pixels on {}, model {}\n", plan.width, plan.height, names, exact(plan.model_bytes));
  for (const auto& d : plan.devices)
    if (several) out += device_line(d, plan);
  if (!several) {
    out += fmt::format("budget {}, planned {}, of that the backend's own {}\n",
                       plan.unlimited ? std::string("unlimited") : exact(plan.budget), exact(plan.planned), size(plan.backend));
    out += plan.device_known
               ? fmt::format("device: {} free of {}, as it reports\n", size(plan.device_free), size(plan.device_total))
               : std::string("device: what it reports cannot be believed; the budget alone counts\n");
    out += fmt::format("smallest budget that works: {}\nbudget from which nothing is copied twice: {}\n", exact(plan.smallest),
                       exact(plan.full));
  }
  for (const auto& stage : plan.stages) {
    out += fmt::format("\n{} ({}): {} lane{}, {} step{}\n", stage.name, stage.component, stage.lanes,
                       stage.lanes == 1 ? "" : "s", stage.sweeps, stage.sweeps == 1 ? "" : "s");
    out += fmt::format(
        "  weights {}, of these on the device {}; slots {}, state {}, workspace {}; together {} beside the residents\n",
        size(stage.weights), size(stage.resident), size(stage.slots), size(stage.state), size(stage.workspace),
        size(stage.transient));
    out += fmt::format("  copies {} a step, {} block{} in flight; predicted {} a step, not below {}\n",
                       size(stage.bytes_per_sweep), stage.in_flight, stage.in_flight == 1 ? "" : "s", seconds(stage.step_s),
                       seconds(stage.roofline_s));
    add_blocks(out, stage, every_block, several);
  }
  return out;
}

std::string memory_table(const Generated& generated) {
  const auto& plan = generated.plan;
  std::string out = fmt::format("where the memory went{}:\n", plan.devices.size() > 1 ? "" : " on " + plan.device);
  out += fmt::format("  {:<9}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}{:>9}{:>10}\n", "stage", "weights", "resident", "slots",
                     "state", "workspace", "copied", "time", "a step");
  for (const auto& stage : plan.stages) {
    const auto* run = find_run(generated, stage.name);
    out += fmt::format("  {:<9}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}{:>9}{:>10}\n", stage.name, size(stage.weights),
                       size(stage.resident), size(stage.slots), size(stage.state), size(stage.workspace),
                       run ? size(run->copied) : "-", run ? seconds(run->seconds) : "-", run ? seconds(run->step_s) : "-");
  }
  for (std::size_t i = 0; i < generated.peaks.size(); ++i) {
    const auto& peak = generated.peaks[i];
    const DevicePlan& d = plan.devices[i];
    out += fmt::format("  {}peak {} of budget {} (the backend's own {})\n",
                       generated.peaks.size() > 1 ? peak.device + ": " : std::string{}, size(peak.bytes),
                       d.unlimited ? std::string("unlimited") : size(peak.limit), size(d.backend));
  }
  out += fmt::format("  model {}; read from file {}\n", size(plan.model_bytes), size(generated.bytes_read));
  return out;
}

std::string file_text(const FileSummary& summary) {
  std::string out = fmt::format("{}: {}, {}, {}\n", summary.path, summary.format, exact(summary.bytes), summary.architecture);
  for (const auto& [key, value] : summary.metadata) {
    // Real files carry kilobytes of training notes here.
    out += fmt::format("  {}: {}\n", key, value.size() <= 100 ? value : value.substr(0, 100) + "…");
  }
  for (const auto& component : summary.components) {
    out += fmt::format("\n{} ({}): {} tensors, {}\n", component.name, component.architecture, component.tensors,
                       size(component.bytes));
    for (const auto& [name, value] : component.dims) out += fmt::format("  {}: {}\n", name, value);
    for (const auto& [dtype, bytes] : component.dtypes) out += fmt::format("  stored as {}: {}\n", dtype, size(bytes));
    if (!component.missing.empty()) {
      out += fmt::format("  missing {} weights, first of them:\n", component.missing.size());
      for (std::size_t i = 0; i < std::min<std::size_t>(5, component.missing.size()); ++i)
        out += fmt::format("    {}\n", component.missing[i]);
    }
  }
  const auto list = [&out](const char* what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    out += fmt::format("\n{} ({}):\n", what, names.size());
    for (std::size_t i = 0; i < std::min<std::size_t>(5, names.size()); ++i) out += fmt::format("  {}\n", names[i]);
    if (names.size() > 5) out += fmt::format("  … all of them with --json\n");
  };
  list("ignored, as every reader does", summary.ignored);
  list("not used by this architecture", summary.unused);
  list("warnings", summary.warnings);
  return out;
}

}  // namespace sluice::cli
