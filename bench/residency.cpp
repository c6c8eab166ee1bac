#include "bench/residency.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "bench/machine.h"
#include "bench/memory_timeline.h"
#include "io/atomic_file.h"
#include "pipeline/engine_core.h"
#include "pipeline/loaded_model.h"
#include "pipeline/text_to_image.h"
#include "sluice/engine.h"

namespace sluice::bench {
namespace {

constexpr const char* kDevice = "sim:link=100MB/s,compute=20GFLOPS,threads=1";

Request request(int steps) {
  Request r;
  r.prompt = "a red apple";
  r.seed = 7;
  r.steps = steps;
  return r;
}

EngineOptions options(const std::string& model, Tier tier, std::optional<Bytes> budget) {
  EngineOptions o;
  o.model = model;
  o.device = kDevice;
  o.tier = tier;
  if (budget) o.device_budget = {Budget::Kind::bytes, *budget};
  return o;
}

const char* tier_name(Tier tier) { return tier == Tier::read ? "read" : "disk"; }

void print(const std::string& model, const char* scenario, int number, Tier tier, Bytes budget, const Generated& g,
           const nlohmann::json& more = nlohmann::json::object()) {
  auto line = machine();
  line["model"] = std::filesystem::path(model).filename().string();
  line["scenario"] = scenario;
  line["request"] = number;
  line["tier"] = tier_name(tier);
  line["budget"] = budget;
  line["peak"] = g.ledger_peak;
  line["peak_over_budget"] = static_cast<double>(g.ledger_peak) / static_cast<double>(budget);
  Bytes copied = 0;
  for (const auto& run : g.runs) {
    copied += run.copied;
    if (run.name == "denoise") line["denoise_step_s"] = run.step_s;
  }
  line["bytes_read"] = g.bytes_read;
  line["bytes_copied"] = copied;
  line["evictions"] = g.evictions;
  line["demotions"] = g.demotions;
  line["given_up"] = g.given_up;
  line["plans_built"] = g.plans_built;
  line["wall_s"] = g.seconds;
  line.update(more);
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

Result<PlanReport> whole_plan(const std::string& model) {
  SLUICE_ASSIGN(auto engine, Engine::open(options(model, Tier::read, std::nullopt)));
  return engine->plan(request(4));
}

/// The least budget in which the denoiser stays whole while it runs; the decode then has to take some of it.
Bytes pressure_budget(const PlanReport& whole) {
  for (const auto& stage : whole.stages)
    if (stage.name == "denoise") return align_up(stage.weights + stage.transient + whole.backend, 64 * KiB);
  return whole.full;
}

Status requests(const std::string& model, const char* scenario, Tier tier, Bytes budget, int count) {
  SLUICE_ASSIGN(auto engine, Engine::open(options(model, tier, budget)));
  for (int i = 1; i <= count; ++i) {
    SLUICE_ASSIGN(const auto made, engine->generate(request(4), {}, CancelToken{}));
    print(model, scenario, i, tier, budget, made);
  }
  return {};
}

/// Two sessions of one engine take turns, as the experts for high and for low noise would.
Status two_denoisers(const std::string& model, Tier tier, Bytes budget) {
  auto setup = options(model, tier, budget);
  SLUICE_ASSIGN(auto engine, Engine::open(setup));
  SLUICE_ASSIGN(auto other, engine->add(setup));
  for (int i = 1; i <= 4; ++i) {
    ModelSession& session = i % 2 == 1 ? static_cast<ModelSession&>(*engine) : *other;
    SLUICE_ASSIGN(const auto made, session.generate(request(4), {}, CancelToken{}));
    print(model, "two_denoisers", i, tier, budget, made, {{"session", i % 2 == 1 ? "first" : "second"}});
  }
  return {};
}

/// Half of the budget goes after the second step and comes back after the fourth.
Status outside_pressure(const std::string& model, Tier tier, const PlanReport& whole) {
  const Bytes budget = whole.full;
  const Bytes half = std::max(budget / 2, whole.smallest);
  const auto setup = options(model, tier, budget);
  SLUICE_ASSIGN(auto devices, EngineDevices::open(setup));
  // The engine's own core, so that one can see what is taken in between.
  const auto core = std::make_shared<EngineCore>(setup, std::move(devices));
  SLUICE_ASSIGN(const auto session, open_model_session(core, setup));
  const auto set_budget = [&](Bytes value) {
    const std::lock_guard lock(core->mutex);
    core->budgets[0] = {Budget::Kind::bytes, value};
  };
  bool pressed = false;
  Bytes most = 0;
  const auto change = [&](const Progress& p) {
    if (p.stage != "denoise") return;
    if (pressed) most = std::max(most, core->memories[0]->taken());
    if (p.done == 2 && !pressed) {
      pressed = true;
      set_budget(half);
    } else if (p.done == 4) {
      pressed = false;
      set_budget(budget);
    }
  };
  SLUICE_ASSIGN(const auto made, session->generate(request(6), change, CancelToken{}));
  print(model, "outside_pressure", 1, tier, budget, made,
        {{"budget_between", half},
         {"most_between", most},
         {"most_between_over_budget", static_cast<double>(most) / static_cast<double>(half)}});
  SLUICE_ASSIGN(const auto again, session->generate(request(6), {}, CancelToken{}));
  print(model, "outside_pressure", 2, tier, budget, again);
  return {};
}

}  // namespace

Status run_residency(const std::string& model) {
  SLUICE_ASSIGN(const auto whole, whole_plan(model));
  const Bytes pressed = pressure_budget(whole);
  for (const Tier tier : {Tier::read, Tier::disk}) {
    SLUICE_TRY(requests(model, "plain", tier, whole.full, 2));
    SLUICE_TRY(requests(model, "decode_pressure", tier, pressed, 3));
    for (const Bytes half_models : {0, 1, 2})
      SLUICE_TRY(two_denoisers(model, tier, whole.full + whole.model_bytes / 2 * half_models));
    SLUICE_TRY(outside_pressure(model, tier, whole));
  }
  return {};
}

Status draw_residency(const std::string& model, const std::string& picture) {
  SLUICE_ASSIGN(const auto whole, whole_plan(model));
  const Bytes budget = pressure_budget(whole);
  SLUICE_ASSIGN(const auto name, parse_device_name(kDevice));
  SLUICE_ASSIGN(const auto sim, parse_sim_options(name));
  SLUICE_ASSIGN(auto device, SimDevice::open(sim));
  std::unique_ptr<LoadedModel> loaded;  // before the store, which refers to its models
  WeightStore store(*device, {HostTier::read, std::nullopt, {}});
  DeviceMemory memory(*device, store, {budget, {}, {}});
  Session session({&memory}, store, {});
  SLUICE_ASSIGN(loaded, load_model(model, *system_files(), store, {}));

  SLUICE_ASSIGN(const Settings settings, check_request(request(4), loaded->rule));
  TextToImage pipeline(*loaded, store, session);
  SLUICE_ASSIGN(const auto specs, pipeline.stages(settings));
  SLUICE_ASSIGN(Prepared * prepared, session.prepare(specs));
  std::vector<StageMark> marks;
  const auto mark = [&](std::size_t stage) {
    marks.push_back({specs[stage].name, device->log().size(), prepared->placement(stage).plan.transient});
  };
  const Bytes zone = prepared->plan().zone;
  for (int i = 0; i < 2; ++i) {
    if (i == 0) mark(0);  // the same words are not encoded again
    Watch watch;
    watch.context = [&](auto, auto) { mark(1); };
    watch.step = [&](int, int step, auto) {
      if (step + 1 == settings.request.steps) mark(2);
    };
    SLUICE_ASSIGN(const auto drawn, pipeline.draw(settings, {}, CancelToken{}, watch));
    SLUICE_ASSIGN(prepared, session.prepare(specs));
    marks.push_back({"", device->log().size(), 0});
  }
  const auto log = device->log();
  const auto samples = memory_timeline(log, marks, zone);
  std::vector<std::pair<double, std::string>> stages;
  for (std::size_t m = 0; m < marks.size(); ++m) {
    if (marks[m].name.empty()) continue;
    // A stage begins where all that was logged before it has ended.
    const auto before = memory_timeline(std::span(log).first(marks[m].events), std::span(marks).first(m), zone);
    stages.emplace_back(before.empty() ? 0 : before.back().at_s, marks[m].name);
  }
  const auto svg = draw_timeline(samples, stages, budget,
                                 "Two requests with one prompt on a device that cannot hold denoiser and decode at once");
  return write_whole_file(picture, std::as_bytes(std::span(svg)));
}

}  // namespace sluice::bench
