#include "models/prefixes.h"

#include <algorithm>
#include <array>

#include "models/clip_text.h"

namespace sluice {
namespace {

constexpr std::string_view kTextPrefix = "cond_stage_model.transformer.";
constexpr std::string_view kDenoiserPrefix = "model.diffusion_model.";
constexpr std::string_view kAutoencoderPrefix = "first_stage_model.";

std::string_view customary_prefix(Part part) {
  switch (part) {
    case Part::text: return kTextPrefix;
    case Part::denoiser: return kDenoiserPrefix;
    case Part::autoencoder: return kAutoencoderPrefix;
  }
  return {};
}

/// Starts of names that belong to a part, whatever else is missing.
bool belongs(Part part, std::string_view name) {
  const auto starts = [&](std::initializer_list<std::string_view> list) {
    return std::any_of(list.begin(), list.end(), [&](std::string_view start) { return name.starts_with(start); });
  };
  switch (part) {
    case Part::text: return starts({"text_model."});
    case Part::denoiser: return starts({"input_blocks.", "middle_block.", "output_blocks.", "time_embed."});
    case Part::autoencoder: return starts({"decoder.mid.", "decoder.up.", "decoder.conv_in.", "decoder.conv_out."});
  }
  return false;
}

/// Buffers that latent diffusion's training code saves beside the weights (CompVis ddpm.py, register_schedule).
constexpr std::array<std::string_view, 15> kScheduleBuffers = {"betas",
                                                               "alphas_cumprod",
                                                               "alphas_cumprod_prev",
                                                               "sqrt_alphas_cumprod",
                                                               "sqrt_one_minus_alphas_cumprod",
                                                               "log_one_minus_alphas_cumprod",
                                                               "sqrt_recip_alphas_cumprod",
                                                               "sqrt_recipm1_alphas_cumprod",
                                                               "posterior_variance",
                                                               "posterior_log_variance_clipped",
                                                               "posterior_mean_coef1",
                                                               "posterior_mean_coef2",
                                                               "lvlb_weights",
                                                               "logvar",
                                                               "scale_factor"};

}  // namespace

std::string_view part_name(Part part) {
  switch (part) {
    case Part::text: return "text encoder";
    case Part::denoiser: return "denoiser";
    case Part::autoencoder: return "autoencoder";
  }
  return {};
}

std::optional<std::string> find_part(const TensorFile& file, Part part) {
  bool bare = false;
  const std::string_view prefix = customary_prefix(part);
  const auto look = [&](std::string_view name) {
    if (name.starts_with(prefix) && belongs(part, name.substr(prefix.size()))) return true;
    bare = bare || belongs(part, name);
    return false;
  };
  for (const auto& tensor : file.tensors) {
    if (look(tensor.name)) return std::string(prefix);
  }
  for (const auto& name : file.unknown) {
    if (look(name)) return std::string(prefix);
  }
  if (bare) return std::string();
  return std::nullopt;
}

bool is_ballast(std::string_view name) {
  if (std::find(kScheduleBuffers.begin(), kScheduleBuffers.end(), name) != kScheduleBuffers.end()) return true;
  if (name.starts_with("model_ema.")) return true;
  if (name == "cond_stage_model.logit_scale") return true;
  if (name.starts_with(kAutoencoderPrefix)) {
    name.remove_prefix(kAutoencoderPrefix.size());
    return name.starts_with("loss.") || name.starts_with("model_ema.");
  }
  if (name.starts_with("loss.")) return true;
  if (name.starts_with(kTextPrefix)) name.remove_prefix(kTextPrefix.size());
  return clip_text_ignores(name);
}

}  // namespace sluice
