#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/wall_clock.h"
#include "residency/device_memory.h"
#include "residency/weight_store.h"
#include "sluice/engine.h"

namespace sluice {

/// Whoever keeps something that is given up when nothing is asked for.
class IdleListener {
 public:
  virtual ~IdleListener() = default;
  /// Forgets plans and caches, unless it is being used. From any thread.
  virtual void on_idle() = 0;
};

/// The devices of an engine, opened, each with what was said of its budget.
struct EngineDevices {
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Budget> budgets;                ///< parallel
  std::vector<std::optional<Bytes>> allowed;  ///< parallel: the bytes they mean now; none: unlimited
  std::optional<std::size_t> fallback;        ///< a CPU that nobody asked for, for what the others cannot run
  /// Opens what the options name. Errors: those of open_device and resolve_budgets; invalid_argument for a device that is named
  /// twice, two names of one card, a budget for a device that is not there.
  static Result<EngineDevices> open(const EngineOptions& options);
};

/// What all sessions of an engine share; lives as long as the last of them.
struct EngineCore {
  EngineCore(EngineOptions o, EngineDevices d);

  /// Brings the devices' budgets up to date with what their drivers report.
  Status follow();
  /// Gives up what can be brought back. Waits for a request that runs.
  void unload(bool host);
  /// The device of that name, as its DeviceInfo has it; empty: the first. Errors: invalid_argument (lists those
  /// there are).
  Result<std::size_t> find(const std::string& device) const;
  /// What a component may be placed on: all devices, or those that the options name, and the fallback. Errors: those of `find`.
  Result<std::vector<std::size_t>> places_for(const ModelOptions& model, const std::string& component) const;

  const EngineOptions options;
  const std::vector<std::unique_ptr<Device>> devices;
  const std::optional<std::size_t> fallback;
  WeightStore store;
  const std::vector<std::unique_ptr<DeviceMemory>> memories;  ///< parallel to `devices`
  std::mutex registration;                                    ///< components come and go one at a time

  std::mutex mutex;  ///< guards what follows
  std::vector<Budget> budgets;
  int running = 0;  ///< requests that run or wait
  std::set<IdleListener*> sessions;
  Stopwatch idle;  ///< since the last of them ended
};

/// Opens a model on an engine. Errors: those of load_model; invalid_argument for a policy that there is not.
Result<std::unique_ptr<ModelSession>> open_model_session(std::shared_ptr<EngineCore> core, const ModelOptions& options);

}  // namespace sluice
