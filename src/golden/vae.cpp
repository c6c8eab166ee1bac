#include <algorithm>

#include "golden/array.h"
#include "golden/network.h"
#include "models/checkpoint.h"

namespace sluice::golden {
namespace {

/// Runs one half of the autoencoder over a batch of frames [N, C, H, W]; results one after another.
Result<std::vector<std::vector<float>>> run_half(const Setup& setup, const char* name, const Component& half, const Array& in) {
  if (in.shape.size() != 4) return fail(Code::corrupt, "the input is not [N, C, H, W]");
  std::vector<LaneInputs> lanes;
  for (std::int64_t i = 0; i < in.shape[0]; ++i) lanes.push_back({{in.at(i).begin(), in.at(i).end()}});
  SLUICE_ASSIGN(auto outputs, run_network(setup, name, half, {{in.shape[3], in.shape[2], in.shape[1], 1}}, lanes));
  std::vector<std::vector<float>> results;
  for (auto& lane : outputs) results.push_back(std::move(lane[0]));
  return results;
}

}  // namespace

Result<std::vector<Measured>> run_vae(const Case& one, const Setup& setup) {
  SLUICE_ASSIGN(const auto io, one.io());
  SLUICE_ASSIGN(const auto file, one.weights());
  SLUICE_ASSIGN(const auto part, load_autoencoder_kl(file));
  const auto& params = one.meta.at("params");
  const double scale = params.at("scale_factor"), shift = params.at("shift_factor");
  const auto allowed = tolerance(Work::network, one.weight_dtype(), setup.backend());
  std::vector<Measured> out;
  if (io->find("latent_in")) {
    SLUICE_ASSIGN(auto latent, read_array(*io, "latent_in"));
    for (auto& v : latent.values) v = static_cast<float>(v / scale + shift);
    SLUICE_ASSIGN(const auto frames, run_half(setup, "decoder", part.decoder, latent));
    std::vector<float> decoded;
    for (const auto& frame : frames) decoded.insert(decoded.end(), frame.begin(), frame.end());
    out.push_back(measure(*io, "decoded", decoded, allowed));
  }
  if (io->find("image")) {
    if (!part.encoder) return fail(Code::unsupported, "the file has no encoder");
    SLUICE_ASSIGN(const auto image, read_array(*io, "image"));
    SLUICE_ASSIGN(const auto moments, run_half(setup, "encoder", *part.encoder, image));
    std::vector<float> means, log_variances, latents;
    for (const auto& both : moments) {
      std::vector<float> mean(both.size() / 2), log_variance(both.size() / 2);
      split_moments(both, mean, log_variance);
      means.insert(means.end(), mean.begin(), mean.end());
      log_variances.insert(log_variances.end(), log_variance.begin(), log_variance.end());
    }
    std::transform(means.begin(), means.end(), std::back_inserter(latents),
                   [&](float m) { return static_cast<float>((m - shift) * scale); });
    out.push_back(measure(*io, "mean", means, allowed));
    out.push_back(measure(*io, "logvar", log_variances, allowed));
    out.push_back(measure(*io, "latent", latents, allowed));
  }
  return out;
}

}  // namespace sluice::golden
