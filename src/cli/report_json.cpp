#include "cli/report_json.h"

#include "cli/exit_code.h"

namespace sluice::cli {

using nlohmann::json;

json to_json(const PlanReport& plan) {
  json stages = json::array();
  for (const auto& stage : plan.stages) {
    json blocks = json::array();
    for (const auto& block : stage.blocks) {
      blocks.push_back({{"name", block.name},
                        {"weights", block.weights},
                        {"place", block.place},
                        {"device", block.device},
                        {"why", block.why}});
    }
    stages.push_back({{"name", stage.name},
                      {"component", stage.component},
                      {"lanes", stage.lanes},
                      {"sweeps", stage.sweeps},
                      {"weights", stage.weights},
                      {"resident", stage.resident},
                      {"slots", stage.slots},
                      {"state", stage.state},
                      {"workspace", stage.workspace},
                      {"transient", stage.transient},
                      {"bytes_per_step", stage.bytes_per_sweep},
                      {"in_flight", stage.in_flight},
                      {"step_s", stage.step_s},
                      {"roofline_s", stage.roofline_s},
                      {"lower_bound", stage.lower_bound},
                      {"blocks", std::move(blocks)}});
  }
  json devices = json::array();
  for (const auto& d : plan.devices) {
    devices.push_back({{"device", d.device},
                       {"free", d.known ? json(d.free) : json(nullptr)},
                       {"total", d.known ? json(d.total) : json(nullptr)},
                       {"budget", d.unlimited ? json(nullptr) : json(d.budget)},
                       {"backend", d.backend},
                       {"planned", d.planned},
                       {"smallest_budget", d.smallest},
                       {"full_budget", d.full}});
  }
  return {{"devices", std::move(devices)},
          {"device", plan.device},
          {"device_free", plan.device_known ? json(plan.device_free) : json(nullptr)},
          {"device_total", plan.device_known ? json(plan.device_total) : json(nullptr)},
          {"budget", plan.unlimited ? json(nullptr) : json(plan.budget)},
          {"backend", plan.backend},
          {"planned", plan.planned},
          {"smallest_budget", plan.smallest},
          {"full_budget", plan.full},
          {"model_bytes", plan.model_bytes},
          {"width", plan.width},
          {"height", plan.height},
          {"stages", std::move(stages)}};
}

json to_json(const Generated& generated, const std::vector<std::string>& files) {
  json pictures = json::array();
  for (std::size_t i = 0; i < generated.pictures.size(); ++i) {
    const auto& picture = generated.pictures[i];
    pictures.push_back({{"file", i < files.size() ? json(files[i]) : json(nullptr)},
                        {"seed", picture.seed},
                        {"width", picture.width},
                        {"height", picture.height},
                        {"parameters", picture.parameters}});
  }
  json runs = json::array();
  for (const auto& run : generated.runs) {
    runs.push_back({{"name", run.name},
                    {"steps", run.sweeps},
                    {"seconds", run.seconds},
                    {"step_s", run.step_s},
                    {"wait_s", run.wait_s},
                    {"copied", run.copied},
                    {"copied_per_step", run.copied_steady},
                    {"plans_built", run.plans_built}});
  }
  json peaks = json::array();
  for (const auto& peak : generated.peaks)
    peaks.push_back(
        {{"device", peak.device}, {"peak", peak.bytes}, {"limit", peak.limit > 0 ? json(peak.limit) : json(nullptr)}});
  return {{"pictures", std::move(pictures)},
          {"plan", to_json(generated.plan)},
          {"peaks", std::move(peaks)},
          {"runs", std::move(runs)},
          {"peak", generated.ledger_peak},
          {"device_limit", generated.plan.unlimited ? json(nullptr) : json(generated.device_limit)},
          {"bytes_read", generated.bytes_read},
          {"evictions", generated.evictions},
          {"demotions", generated.demotions},
          {"bytes_given_up", generated.given_up},
          {"seconds", generated.seconds}};
}

namespace {

template <typename Value>
json pairs(const std::vector<std::pair<std::string, Value>>& list) {
  json object = json::object();
  for (const auto& [name, value] : list) object[name] = value;
  return object;
}

}  // namespace

json to_json(const FileSummary& summary) {
  json components = json::array();
  for (const auto& component : summary.components) {
    components.push_back({{"name", component.name},
                          {"architecture", component.architecture},
                          {"dims", pairs(component.dims)},
                          {"bytes_by_dtype", pairs(component.dtypes)},
                          {"tensors", component.tensors},
                          {"bytes", component.bytes},
                          {"missing", component.missing}});
  }
  return {{"path", summary.path},
          {"format", summary.format},
          {"bytes", summary.bytes},
          {"architecture", summary.architecture},
          {"metadata", pairs(summary.metadata)},
          {"components", std::move(components)},
          {"ignored", summary.ignored},
          {"unused", summary.unused},
          {"warnings", summary.warnings}};
}

json to_json(const Error& error) {
  json body = {{"code", code_name(error.code)}, {"message", error.message},
               {"explanation", explain(error)}, {"needed", error.needed},
               {"available", error.available},  {"exit", static_cast<int>(exit_code(error.code))}};
  json out = {{"error", std::move(body)}};
  if (error.code == Code::over_budget && error.needed != 0) out["smallest_budget"] = error.needed;
  return out;
}

std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace sluice::cli
