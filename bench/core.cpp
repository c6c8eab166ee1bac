#include "bench/core.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <optional>

#include "bench/machine.h"
#include "exec/plan.h"
#include "sluice/engine.h"

namespace sluice::bench {
namespace {

/// A link that is the bottleneck for this model and one that is not; virtual time, so neither costs any.
constexpr const char* kSlowLink = "sim:link=100MB/s,compute=20GFLOPS,threads=1";

void print(const std::string& model, const char* figure, nlohmann::json values) {
  auto line = machine();
  line["model"] = std::filesystem::path(model).filename().string();
  line["figure"] = figure;
  line.update(values);
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

Request request(float cfg_scale) {
  Request r;
  r.prompt = "a red apple";
  r.seed = 7;
  r.steps = 4;
  r.cfg_scale = cfg_scale;
  return r;
}

EngineOptions options(const std::string& model, const char* device, std::optional<Bytes> budget) {
  EngineOptions o;
  o.model = model;
  o.device = device;
  if (budget) o.device_budget = {Budget::Kind::bytes, *budget};
  return o;
}

const StageReport* stage_of(const PlanReport& plan, const char* name) {
  for (const auto& stage : plan.stages) {
    if (stage.name == name) return &stage;
  }
  return nullptr;
}

const StageRun* run_of(const Generated& generated, const char* name) {
  for (const auto& run : generated.runs) {
    if (run.name == name) return &run;
  }
  return nullptr;
}

Result<Generated> draw(const EngineOptions& o, const Request& r) {
  SLUICE_ASSIGN(auto engine, Engine::open(o));
  return engine->generate(r, {}, CancelToken{});
}

Result<PlanReport> plan(const EngineOptions& o, const Request& r) {
  SLUICE_ASSIGN(auto engine, Engine::open(o));
  return engine->plan(r);
}

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

Status budgets(const std::string& model, const PlanReport& whole) {
  for (const int eighth : {0, 1, 2, 3, 4, 5, 6, 8}) {
    const Bytes budget = whole.smallest + (whole.full - whole.smallest) * static_cast<Bytes>(eighth) / 8;
    SLUICE_ASSIGN(const auto generated, draw(options(model, kSlowLink, budget), request(7)));
    const auto* stage = stage_of(generated.plan, "denoise");
    const auto* run = run_of(generated, "denoise");
    if (!stage || !run) return fail(Code::device_failed, "the report has no denoise stage");
    print(model, "budget",
          {{"budget", budget},
           {"peak", generated.ledger_peak},
           {"peak_over_budget", ratio(static_cast<double>(generated.ledger_peak), static_cast<double>(budget))},
           {"in_flight", stage->in_flight},
           {"bytes_per_step", run->copied_steady},
           {"step_s", run->step_s},
           {"predicted_step_s", stage->step_s},
           {"roofline_s", stage->roofline_s},
           {"step_over_roofline", ratio(run->step_s, stage->roofline_s)},
           {"clock", "virtual"}});
  }
  return {};
}

Status guidance(const std::string& model, const PlanReport& whole) {
  auto o = options(model, kSlowLink, whole.full);
  o.policy = policy_name(Policy::all_streamed);
  SLUICE_ASSIGN(const auto with, draw(o, request(7)));
  SLUICE_ASSIGN(const auto without, draw(o, request(1)));
  const auto a = run_of(with, "denoise")->copied_steady, b = run_of(without, "denoise")->copied_steady;
  print(model, "guidance",
        {{"bytes_per_step", a},
         {"bytes_per_step_unguided", b},
         {"ratio", ratio(static_cast<double>(a), static_cast<double>(b))}});
  return {};
}

void smallest(const std::string& model, const PlanReport& whole) {
  Bytes bound = 0;
  for (const auto& stage : whole.stages) bound = std::max(bound, stage.lower_bound);
  const Bytes without_backend = whole.smallest - whole.backend;
  print(model, "smallest",
        {{"budget", whole.smallest},
         {"backend", whole.backend},
         {"bound", bound},
         {"smallest_over_bound", ratio(static_cast<double>(without_backend), static_cast<double>(bound))}});
}

Status requests(const std::string& model, const PlanReport& whole) {
  auto o = options(model, kSlowLink, whole.full);
  o.tier = Tier::read;
  SLUICE_ASSIGN(auto engine, Engine::open(o));
  SLUICE_ASSIGN(const auto first, engine->generate(request(7), {}, CancelToken{}));
  SLUICE_ASSIGN(const auto second, engine->generate(request(7), {}, CancelToken{}));
  std::error_code error;
  const auto file = std::filesystem::file_size(model, error);
  Bytes copied = 0;
  for (const auto& run : second.runs) copied += run.copied;
  print(model, "first_request",
        {{"bytes_read", first.bytes_read},
         {"file", file},
         {"read_over_file", ratio(static_cast<double>(first.bytes_read), static_cast<double>(file))}});
  print(model, "second_request", {{"bytes_read", second.bytes_read}, {"bytes_copied", copied}});
  return {};
}

void planning(const std::string& model) {
  StageCost stage;
  for (int i = 0; i < 60; ++i) stage.blocks.push_back({.weights = 340 * MiB, .workspace = 400 * MiB, .compute_s = 0.02});
  stage.state.push_back({.size = 64 * MiB, .from = 0, .to = 119});
  stage.lanes = 2;
  stage.sweeps = 20;
  const Bytes least = smallest_transient(stage);
  double worst = 0;
  Bytes at = 0;
  for (Bytes i = 0; i <= 20; ++i) {
    const Bytes budget = least + i * GiB;
    const auto start = std::chrono::steady_clock::now();
    const auto made = plan_stage(stage, budget);
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    if (made && ms > worst) {
      worst = ms;
      at = budget;
    }
  }
  print(model, "planning_60_blocks", {{"worst_ms", worst}, {"budget", at}, {"budgets", 21}, {"clock", "real"}});
}

Status whole_graph(const std::string& model) {
  // One lane and no copies, so that both do the same work; turns are taken so that a busy machine disturbs both alike.
  double blocks_s = 1e30, graph_s = 1e30;
  SLUICE_ASSIGN(auto engine, Engine::open(options(model, "cpu:threads=1", std::nullopt)));
  for (int turn = 0; turn < 5; ++turn) {
    auto r = request(1);
    r.steps = 8;
    SLUICE_ASSIGN(const auto generated, engine->generate(r, {}, CancelToken{}));
    blocks_s = std::min(blocks_s, run_of(generated, "denoise")->step_s);
    SLUICE_ASSIGN(const double once, whole_graph_step_s(model, 8));
    graph_s = std::min(graph_s, once);
  }
  print(model, "blocks_over_whole_graph",
        {{"step_s", blocks_s}, {"whole_graph_s", graph_s}, {"ratio", ratio(blocks_s, graph_s)}, {"clock", "real"}});
  return {};
}

}  // namespace

Status run_core(const std::string& model) {
  SLUICE_ASSIGN(const auto whole, plan(options(model, kSlowLink, std::nullopt), request(7)));
  SLUICE_TRY(budgets(model, whole));
  SLUICE_TRY(guidance(model, whole));
  smallest(model, whole);
  SLUICE_TRY(requests(model, whole));
  planning(model);
  return whole_graph(model);
}

}  // namespace sluice::bench
