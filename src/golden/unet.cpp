#include "golden/array.h"
#include "golden/network.h"
#include "models/checkpoint.h"
#include "sampling/parametrisation.h"

namespace sluice::golden {

Result<std::vector<Measured>> run_unet(const Case& one, const Setup& setup) {
  SLUICE_ASSIGN(const auto io, one.io());
  SLUICE_ASSIGN(const auto file, one.weights());
  SLUICE_ASSIGN(const auto part, load_sd_unet(file));
  SLUICE_ASSIGN(const auto x, read_array(*io, "x"));
  SLUICE_ASSIGN(const auto timesteps, read_array(*io, "timesteps"));
  SLUICE_ASSIGN(const auto context, read_array(*io, "context"));
  if (x.shape.size() != 4 || context.shape.size() != 3 || timesteps.values.size() != static_cast<std::size_t>(x.shape[0]) ||
      context.shape[0] != x.shape[0]) {
    return fail(Code::corrupt, "x, timesteps and context do not belong together");
  }
  const Model& model = *part.component.model;
  const auto x_at = input_index(model, part.values.x), t_at = input_index(model, part.values.t_emb),
             c_at = input_index(model, part.values.context);
  std::vector<Shape> shapes(model.inputs.size(), Shape{1, 1, 1, 1});
  shapes[x_at] = {x.shape[3], x.shape[2], x.shape[1], 1};
  shapes[t_at] = {part.config.model_channels, 1, 1, 1};
  shapes[c_at] = {context.shape[2], context.shape[1], 1, 1};
  std::vector<LaneInputs> lanes;
  for (std::int64_t i = 0; i < x.shape[0]; ++i) {
    LaneInputs lane(model.inputs.size());
    const auto frame = x.at(i), words = context.at(i);
    lane[x_at].assign(frame.begin(), frame.end());
    lane[c_at].assign(words.begin(), words.end());
    lane[t_at].resize(static_cast<std::size_t>(part.config.model_channels));
    timestep_embedding(timesteps.values[static_cast<std::size_t>(i)], lane[t_at]);
    lanes.push_back(std::move(lane));
  }
  SLUICE_ASSIGN(const auto outputs, run_network(setup, "denoiser", part.component, shapes, lanes));
  std::vector<float> eps;
  for (const auto& lane : outputs) {
    const auto& values = lane[output_index(model, part.values.eps)];
    eps.insert(eps.end(), values.begin(), values.end());
  }
  return std::vector<Measured>{measure(*io, "eps", eps, tolerance(Work::network, one.weight_dtype(), setup.backend()))};
}

}  // namespace sluice::golden
