#pragma once

#include <memory>
#include <optional>
#include <string>

#include "device/sim_device.h"
#include "exec/session.h"
#include "io/file.h"
#include "pipeline/budget.h"
#include "pipeline/loaded_model.h"
#include "pipeline/text_to_image.h"

namespace sluice::test {

inline const std::string kDemoModel = std::string(SLUICE_SOURCE_DIR) + "/models/emoji-sd.safetensors";

/// How a rig is set up.
struct RigOptions {
  std::string device;  ///< a device's name; empty: the simulated device as `sim` says
  // One compute thread: ggml's threads spin at their barriers, so two on a busy machine can be a hundred times slower than one.
  SimOptions sim = [] {
    SimOptions o;
    o.threads = 1;
    return o;
  }();
  std::optional<Bytes> budget;  ///< backend account included
  /// Further simulated devices, with their budgets: then every component may be spread over all.
  std::vector<std::pair<SimOptions, std::optional<Bytes>>> more;
  std::int64_t spread_from = 0;  ///< with `more`: rows of matrices of so many rows and columns lie on all of them; 0: none
  HostTier tier = HostTier::mapped;
  PlanOptions plan;
  std::string model = kDemoModel;
  std::shared_ptr<const FileSource> files = system_files();
};

/// The engine's parts joined by hand, so that a test can look inside: at the simulated device's own accounts, at bound graphs.
class Rig {
 public:
  static Result<std::unique_ptr<Rig>> open(const RigOptions& options) {
    std::vector<std::unique_ptr<Device>> devices;
    std::vector<SimDevice*> sims;
    std::vector<std::optional<Bytes>> budgets{options.budget};
    const auto simulate = [&](const SimOptions& sim) -> Status {
      SLUICE_ASSIGN(auto opened, SimDevice::open(sim));
      sims.push_back(opened.get());
      devices.push_back(std::move(opened));
      return {};
    };
    if (options.device.empty()) {
      SLUICE_TRY(simulate(options.sim));
    } else {
      SLUICE_ASSIGN(auto device, open_device(options.device));
      devices.push_back(std::move(device));
    }
    ModelPlaces places;
    places.spread_rows = options.spread_from > 0;
    places.spread_from = options.spread_from;
    for (const auto& [sim, budget] : options.more) {
      for (auto* list : {&places.text, &places.denoiser, &places.vae}) list->push_back(devices.size());
      SLUICE_TRY(simulate(sim));
      budgets.push_back(budget);
    }
    auto rig = std::unique_ptr<Rig>(new Rig(std::move(devices), budgets, options));
    rig->sims_ = std::move(sims);
    SLUICE_ASSIGN(rig->model_, load_model(options.model, *options.files, rig->store_, {}, places));
    return rig;
  }

  /// The i-th simulated device.
  SimDevice& device(std::size_t i = 0) { return *sims_[i]; }
  Device& any_device() { return *devices_[0]; }
  WeightStore& store() { return store_; }
  DeviceMemory& memory(std::size_t device = 0) { return *memories_[device]; }
  Session& session() { return session_; }
  /// As a budget that was other from the start.
  void set_budget(std::optional<Bytes> budget) {
    session_.release();
    memories_[0]->set_budget(budget);
  }
  LoadedModel& model() { return *model_; }

  Result<Prepared*> prepare(const Request& request) {
    SLUICE_ASSIGN(const Settings settings, check_request(request, model_->rule));
    SLUICE_ASSIGN(const auto specs, TextToImage(*model_, store_, session_).stages(settings));
    return session_.prepare(specs);
  }

  Result<Drawn> draw(const Request& request, const CancelToken& cancel = {}, const Watch& watch = {}) {
    SLUICE_ASSIGN(const Settings settings, check_request(request, model_->rule));
    return draw(settings, cancel, watch);
  }

  /// The same from settings, which can say more than a request: the noise to start from.
  Result<Drawn> draw(const Settings& settings, const CancelToken& cancel = {}, const Watch& watch = {}) {
    return TextToImage(*model_, store_, session_).draw(settings, {}, cancel, watch);
  }

 private:
  Rig(std::vector<std::unique_ptr<Device>> devices, const std::vector<std::optional<Bytes>>& budgets, const RigOptions& options)
      : devices_(std::move(devices)),
        store_(pointers(devices_), {options.tier, std::nullopt, {}}),
        memories_(make_memories(budgets)),
        session_(pointers(memories_), store_, {.plan = options.plan, .variants = {}, .log = {}, .follow = {}}) {}

  template <typename T>
  static std::vector<T*> pointers(const std::vector<std::unique_ptr<T>>& owners) {
    std::vector<T*> list;
    for (const auto& owner : owners) list.push_back(owner.get());
    return list;
  }

  std::vector<std::unique_ptr<DeviceMemory>> make_memories(const std::vector<std::optional<Bytes>>& budgets) {
    std::vector<std::unique_ptr<DeviceMemory>> memories;
    for (std::size_t i = 0; i < devices_.size(); ++i)
      memories.push_back(std::make_unique<DeviceMemory>(*devices_[i], store_, DeviceMemory::Options{budgets[i], {}, {}, i}));
    return memories;
  }

  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<SimDevice*> sims_;
  std::unique_ptr<LoadedModel> model_;  // before the store, which refers to its models
  WeightStore store_;
  std::vector<std::unique_ptr<DeviceMemory>> memories_;
  Session session_;
};

/// What an engine does for its one device before each request and between sweeps.
inline Status follow_one(const Budget& budget, Bytes reserve, DeviceMemory& memory) {
  SLUICE_ASSIGN(const auto now, resolve_budget(budget, memory.device(), memory.taken(), reserve));
  follow_memory(budget, now, reserve, memory);
  return {};
}

/// The demo model on a device; `budget` automatic where not said.
inline EngineOptions engine_on(const std::string& device, Budget budget = {}) {
  EngineOptions options;
  options.model = kDemoModel;
  options.device = device;
  options.device_budget = budget;
  return options;
}

/// The request every placement test draws: 32×32, two steps, guided.
inline Request small_request() {
  Request r;
  r.prompt = "a red apple";
  r.width = r.height = 32;
  r.steps = 2;
  r.seed = 7;
  r.cfg_scale = 5;
  return r;
}

/// The same with one step.
inline Request one_step() {
  Request r = small_request();
  r.steps = 1;
  return r;
}

}  // namespace sluice::test
