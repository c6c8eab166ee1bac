#include "models/autoencoder_kl.h"

#include "doctest/doctest.h"
#include "models/checkpoint.h"
#include "models/oracle.h"

namespace sluice::testing {
namespace {

constexpr double kScale = 0.18215;

std::vector<float> decode(const AutoencoderPart& vae, const BlockRunner& runner, std::vector<float> latent, std::int64_t w,
                          std::int64_t h) {
  for (float& x : latent) x = static_cast<float>(x / kScale);
  const auto& v = vae.decoder_values;
  return runner.run(vae.decoder, {{v.latent.id, {{w, h, vae.config.latent_channels, 1}, std::move(latent)}}})
      .at(v.image.id)
      .data;
}

std::vector<float> encode(const AutoencoderPart& vae, const BlockRunner& runner, std::vector<float> image, std::int64_t w,
                          std::int64_t h) {
  const auto& v = vae.encoder_values;
  return runner.run(*vae.encoder, {{v.image.id, {{w, h, 3, 1}, std::move(image)}}}).at(v.moments.id).data;
}

AutoencoderPart load(const std::string& path) {
  auto vae = load_autoencoder_kl(open(path));
  REQUIRE_MESSAGE(vae, (vae ? "" : vae.error().message));
  return *std::move(vae);
}

}  // namespace

TEST_CASE("autoencoder_kl: the oracle's encode and decode") {
  const auto vae = load(golden("pipeline/sd1_checkpoint/model.safetensors"));
  CHECK(vae.config.factor() == 8);
  REQUIRE(vae.encoder);
  const auto io = open(golden("vae/sd1_vae/io.safetensors"));
  for (const auto& [types, bound] : {std::pair{WeightTypes::f32, kF32}, std::pair{WeightTypes::device, kF16}}) {
    const BlockRunner runner(types);
    check_close("decoded", decode(vae, runner, values(*io, "latent_in"), 5, 4), values(*io, "decoded"), bound);
    const auto moments = encode(vae, runner, values(*io, "image"), 40, 32);
    std::vector<float> mean(moments.size() / 2), log_variance(mean.size());
    split_moments(moments, mean, log_variance);
    check_close("mean", mean, values(*io, "mean"), bound);
    check_close("logvar", log_variance, values(*io, "logvar"), bound);
    for (float& x : mean) x = static_cast<float>(x * kScale);
    check_close("latent", mean, values(*io, "latent"), bound);
  }
}

TEST_CASE("autoencoder_kl: a frame large enough for direct convolution and attention in pieces") {
  const auto vae = load(golden("pipeline/sd1_checkpoint/model.safetensors"));
  const auto io = open(golden("vae/sd1_vae_large_decode/io.safetensors"));
  const auto want = values(*io, "decoded");
  // 64 × 48 queries: scores of 36 MiB, so that 8 MiB makes five pieces; the widest unfolded frame is 216 MiB in f32.
  const Variants pieces{.im2col_limit = 16 * MiB, .score_limit = 8 * MiB, .flash = false};
  check_close("f32, pieces", decode(vae, BlockRunner(WeightTypes::f32, pieces), values(*io, "latent_in"), 64, 48), want, kF32);
  check_close("f16", decode(vae, BlockRunner(WeightTypes::device), values(*io, "latent_in"), 64, 48), want, kF16);
}

TEST_CASE("autoencoder_kl: the demo model's moments and pictures, three levels") {
  const auto vae = load(std::string(SLUICE_SOURCE_DIR) + "/models/emoji-sd.safetensors");
  CHECK(vae.config.factor() == 4);
  const auto reference = open(golden("demo/reference.safetensors"));
  for (const auto& [types, bound] : {std::pair{WeightTypes::f32, kF32}, std::pair{WeightTypes::device, kF16}}) {
    const BlockRunner runner(types);
    check_close("moments", encode(vae, runner, values(*reference, "vae.encoder_input"), 64, 64),
                values(*reference, "vae.moments"), bound);
    check_close("image", decode(vae, runner, values(*reference, "discrete.0.latent"), 16, 16),
                values(*reference, "discrete.0.image"), bound);
  }
}

TEST_CASE("split_moments: the log variance is clamped, the mean is not") {
  const float moments[] = {100, -100, 25, -31};
  float mean[2], log_variance[2];
  split_moments(moments, mean, log_variance);
  CHECK(mean[0] == 100);
  CHECK(mean[1] == -100);
  CHECK(log_variance[0] == 20);
  CHECK(log_variance[1] == -30);
}

}  // namespace sluice::testing
