#pragma once

#include <memory>
#include <mutex>
#include <set>

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

/// What all sessions of an engine share; lives as long as the last of them.
struct EngineCore {
  EngineCore(EngineOptions o, std::unique_ptr<Device> d, std::optional<Bytes> device_budget);

  /// Brings the device's budget up to date with what its driver reports.
  Status follow();
  /// Gives up what can be brought back. Waits for a request that runs.
  void unload(bool host);

  const EngineOptions options;
  std::unique_ptr<Device> device;
  WeightStore store;
  DeviceMemory memory;
  std::mutex registration;  ///< components come and go one at a time

  std::mutex mutex;  ///< guards what follows
  Budget budget;
  int running = 0;  ///< requests that run or wait
  std::set<IdleListener*> sessions;
  Stopwatch idle;  ///< since the last of them ended
};

/// Opens a model on an engine. Errors: those of load_model; invalid_argument for a policy that there is not.
Result<std::unique_ptr<ModelSession>> open_model_session(std::shared_ptr<EngineCore> core, const ModelOptions& options);

}  // namespace sluice
