#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/session.h"
#include "golden/runner.h"
#include "models/component.h"
#include "pipeline/run_stage.h"

namespace sluice::golden {

/// A device with an empty weight store and a session on it: what every network runs through, the engine's own path.
struct Rig {
  std::unique_ptr<Device> device;
  std::unique_ptr<WeightStore> store;
  std::unique_ptr<DeviceMemory> memory;
  std::unique_ptr<Session> session;  // last: goes first
  ~Rig();
  Rig() = default;
  Rig(Rig&&) = default;
};

/// Errors: those of opening the device.
Result<Rig> open_rig(const Setup& setup);

/// The budgets that `setup` asks for: one (none: unlimited), or eight evenly spread from `smallest` to `full`, both included.
std::vector<std::optional<Bytes>> budgets_for(const Setup& setup, Bytes smallest, Bytes full);

/// One pass of a network over lanes of one shape. `shapes`: of each input, parallel to the model's inputs.
/// With a sweep of budgets the outputs have to be equal bit for bit, else device_failed; the first's are returned.
Result<std::vector<LaneOutputs>> run_network(const Setup& setup, const char* name, const Component& component,
                                             const std::vector<Shape>& shapes, const std::vector<LaneInputs>& lanes);

/// Where an output stands among a model's outputs, and an input among its inputs.
std::size_t output_index(const Model& model, Value value);
std::size_t input_index(const Model& model, Value value);

}  // namespace sluice::golden
