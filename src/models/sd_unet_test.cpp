#include "models/sd_unet.h"

#include "doctest/doctest.h"
#include "models/checkpoint.h"
#include "models/oracle.h"
#include "sampling/parametrisation.h"

namespace sluice::testing {
namespace {

struct Call {
  std::vector<std::int64_t> x_shape;
  std::vector<float> x, context;
  double timestep;
  std::int64_t tokens;
};

std::vector<float> evaluate(const DenoiserPart& unet, const BlockRunner& runner, const Call& call) {
  HostTensor t_emb{{unet.config.model_channels, 1}, std::vector<float>(static_cast<std::size_t>(unet.config.model_channels))};
  timestep_embedding(call.timestep, t_emb.data);
  const auto& v = unet.values;
  return runner
      .run(unet.component, {{v.x.id, {call.x_shape, call.x}},
                            {v.t_emb.id, t_emb},
                            {v.context.id, {{unet.config.context, call.tokens}, call.context}}})
      .at(v.eps.id)
      .data;
}

Call oracle_call(const TensorFile& io) {
  return {{24, 16, 4, 1}, values(io, "x"), values(io, "context"), values(io, "timesteps")[0], 77};
}

}  // namespace

TEST_CASE("sd_unet: the oracle's four levels, widened to f32 and as stored") {
  const auto unet = load_sd_unet(open(golden("pipeline/sd1_checkpoint/model.safetensors")));
  REQUIRE_MESSAGE(unet, (unet ? "" : unet.error().message));
  CHECK(unet->config.input.size() == 12);
  CHECK(unet->config.latent_multiple() == 8);
  const auto io = open(golden("unet/sd1_four_levels/io.safetensors"));
  const Call call = oracle_call(*io);
  const auto want = values(*io, "eps");
  check_close("f32", evaluate(*unet, BlockRunner(WeightTypes::f32), call), want, kF32);
  check_close("f16", evaluate(*unet, BlockRunner(WeightTypes::device), call), want, kF16);
  // The same mathematics by the other operators.
  const Variants whole{.im2col_limit = 1 * GiB, .score_limit = 1 * GiB},
      pieces{.im2col_limit = 0, .score_limit = 64 * KiB, .flash = false};
  check_close("f32, unfolded, whole scores", evaluate(*unet, BlockRunner(WeightTypes::f32, whole), call), want, kF32);
  check_close("f32, direct, few queries", evaluate(*unet, BlockRunner(WeightTypes::f32, pieces), call), want, kF32);
}

TEST_CASE("sd_unet: the demo model's reference") {
  const auto unet = load_sd_unet(open(std::string(SLUICE_SOURCE_DIR) + "/models/emoji-sd.safetensors"));
  REQUIRE_MESSAGE(unet, (unet ? "" : unet.error().message));
  const auto reference = open(golden("demo/reference.safetensors"));
  const auto want = values(*reference, "unet.eps"), timesteps = values(*reference, "unet.timesteps");
  const std::size_t size = 4 * 16 * 16;
  for (const auto& [types, bound] : {std::pair{WeightTypes::f32, kF32}, std::pair{WeightTypes::device, kF16}}) {
    std::vector<float> got;
    for (std::size_t i = 0; i < 4; ++i) {
      const auto name = std::to_string(i);
      const auto eps = evaluate(
          *unet, BlockRunner(types),
          {{16, 16, 4, 1}, values(*reference, name + ".noise"), values(*reference, name + ".context"), timesteps[i], 77});
      REQUIRE(eps.size() == size);
      got.insert(got.end(), eps.begin(), eps.end());
    }
    check_close(types == WeightTypes::f32 ? "f32" : "f16", got, want, bound);
  }
}

}  // namespace sluice::testing
