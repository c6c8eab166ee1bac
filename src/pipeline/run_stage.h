#pragma once

#include <functional>
#include <vector>

#include "exec/session.h"

namespace sluice {

/// What a lane's host-written inputs hold for a sweep, parallel to Model::inputs: f32 values in ggml order.
using LaneInputs = std::vector<std::vector<float>>;
/// What a lane's outputs held after a sweep, parallel to Model::outputs.
using LaneOutputs = std::vector<std::vector<float>>;

/// Writes inputs, sweeps once, reads outputs, ends the sweep. Inputs written once per lane are skipped unless `first`.
/// Errors: those of SweepRunner; device_failed when an output is not finite (names the stage).
Result<std::vector<LaneOutputs>> sweep_once(SweepRunner& runner, const Stage& stage, const std::vector<LaneInputs>& inputs,
                                            bool first, const std::function<void(int)>& on_block);

/// The shapes a lane of these inputs has, from the element counts and the leading dimensions each input is given in `shapes`.
LaneShape lane_shape(std::initializer_list<Shape> shapes);

}  // namespace sluice
