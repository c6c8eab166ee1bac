#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/session.h"
#include "golden/runner.h"
#include "models/component.h"
#include "pipeline/run_stage.h"

namespace sluice::golden {

/// Devices with an empty weight store and a session on them: what every network runs through, the engine's own path.
struct Rig {
  std::vector<std::unique_ptr<Device>> devices;
  std::unique_ptr<WeightStore> store;
  std::vector<std::unique_ptr<DeviceMemory>> memories;  // parallel to `devices`
  std::unique_ptr<Session> session;                     // last: goes first
  /// All of them, in order: blocks are spread over them.
  std::vector<std::size_t> places() const;
  /// Gives everything back and starts anew with these bytes of each device.
  void set_budget(std::optional<Bytes> budget);
  /// Errors: device_failed where a device held more than the budget since `set_budget`.
  Status check_peaks(std::optional<Bytes> budget) const;
  ~Rig();
  Rig() = default;
  Rig(Rig&&) = default;
};

/// Errors: those of opening the devices.
Result<Rig> open_rig(const Setup& setup);

/// The budgets that `setup` asks for, of each device: one (none: unlimited), or eight evenly spread from the smallest that
/// works on every device to the largest that one of them can use, both included. Errors: those of planning the stages.
Result<std::vector<std::optional<Bytes>>> budgets_for(const Setup& setup, Rig& rig, const std::vector<StageSpec>& specs);

/// One pass of a network over lanes of one shape. `shapes`: of each input, parallel to the model's inputs.
/// With a sweep of budgets the outputs have to be equal bit for bit, else device_failed; the first's are returned.
Result<std::vector<LaneOutputs>> run_network(const Setup& setup, const char* name, const Component& component,
                                             const std::vector<Shape>& shapes, const std::vector<LaneInputs>& lanes);

/// Where an output stands among a model's outputs, and an input among its inputs.
std::size_t output_index(const Model& model, Value value);
std::size_t input_index(const Model& model, Value value);

}  // namespace sluice::golden
