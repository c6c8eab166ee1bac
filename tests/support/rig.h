#pragma once

#include <memory>
#include <optional>
#include <string>

#include "device/sim_device.h"
#include "exec/session.h"
#include "io/file.h"
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
  HostTier tier = HostTier::mapped;
  PlanOptions plan;
  std::string model = kDemoModel;
  std::shared_ptr<const FileSource> files = system_files();
};

/// The engine's parts joined by hand, so that a test can look inside: at the simulated device's own accounts, at bound graphs.
class Rig {
 public:
  static Result<std::unique_ptr<Rig>> open(const RigOptions& options) {
    std::unique_ptr<Device> device;
    SimDevice* sim = nullptr;
    if (options.device.empty()) {
      SLUICE_ASSIGN(auto opened, SimDevice::open(options.sim));
      sim = opened.get();
      device = std::move(opened);
    } else {
      SLUICE_ASSIGN(device, open_device(options.device));
    }
    auto rig = std::unique_ptr<Rig>(new Rig(std::move(device), options));
    rig->sim_ = sim;
    SLUICE_ASSIGN(rig->model_, load_model(options.model, *options.files, rig->store_, {}));
    return rig;
  }

  /// Only where RigOptions::device was empty.
  SimDevice& device() { return *sim_; }
  Device& any_device() { return *device_; }
  WeightStore& store() { return store_; }
  DeviceMemory& memory() { return memory_; }
  Session& session() { return session_; }
  /// As a budget that was other from the start.
  void set_budget(std::optional<Bytes> budget) {
    session_.release();
    memory_.set_budget(budget);
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
  Rig(std::unique_ptr<Device> device, const RigOptions& options)
      : device_(std::move(device)),
        store_(*device_, {options.tier, std::nullopt, {}}),
        memory_(*device_, store_, {options.budget, {}, {}}),
        session_({&memory_}, store_, {options.plan, {}, {}, {}}) {}

  std::unique_ptr<Device> device_;
  SimDevice* sim_ = nullptr;
  std::unique_ptr<LoadedModel> model_;  // before the store, which refers to its models
  WeightStore store_;
  DeviceMemory memory_;
  Session session_;
};

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
