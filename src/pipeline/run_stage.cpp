#include "pipeline/run_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace sluice {

LaneShape lane_shape(std::initializer_list<Shape> shapes) { return LaneShape{std::vector<Shape>(shapes)}; }

Result<std::vector<LaneOutputs>> sweep_once(SweepRunner& runner, const Stage& stage, const std::vector<LaneInputs>& inputs,
                                            bool first, const std::function<void(int)>& on_block) {
  const Model& model = stage.model();
  for (std::size_t l = 0; l < inputs.size(); ++l) {
    for (std::size_t i = 0; i < model.inputs.size(); ++i) {
      if (!first && model.inputs[i].refresh == Refresh::once_per_lane) continue;
      SLUICE_TRY(runner.write(l, model.inputs[i].value, std::as_bytes(std::span(inputs[l][i]))));
    }
  }
  SLUICE_TRY(runner.sweep(on_block));
  std::vector<LaneOutputs> outputs(inputs.size());
  for (std::size_t l = 0; l < inputs.size(); ++l) {
    for (const Value v : model.outputs) {
      const Shape& s = stage.facts(l, v).shape;
      std::vector<float> values(static_cast<std::size_t>(s[0] * s[1] * s[2] * s[3]));
      SLUICE_TRY(runner.read(l, v, std::as_writable_bytes(std::span(values))));
      if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) {
        return fail(
            Code::device_failed,
            fmt::format("{}: the result is not finite (overflow in the model's weights or arithmetic); no picture was made",
                        stage.spec().name));
      }
      outputs[l].push_back(std::move(values));
    }
  }
  runner.finish();
  return outputs;
}

}  // namespace sluice
