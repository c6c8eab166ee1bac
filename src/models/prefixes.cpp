#include "models/prefixes.h"

#include <algorithm>
#include <array>

#include "models/autoencoder_kl.h"
#include "models/clip_text.h"

namespace sluice {
namespace {

constexpr std::string_view kTextMarks[] = {"text_model."};
constexpr std::string_view kDenoiserMarks[] = {"input_blocks.", "middle_block.", "output_blocks.", "time_embed."};
constexpr std::string_view kAutoencoderMarks[] = {"decoder.mid.", "decoder.up.", "decoder.conv_in.", "decoder.conv_out."};

/// The autoencoder's training losses and the averaged copy of its weights.
constexpr Ignored kAutoencoderIgnored[] = {{"loss.", true}, {"model_ema.", true}};
constexpr Ignored kTextIgnored[] = {
    {"text_model.embeddings.position_ids"},
    {"logit_scale"},
    {"text_projection.weight"},
    {kClipTokenTable},  // its rows are gathered on the host
};

/// Beside all parts. The single names are buffers that latent diffusion's training code saves beside the weights (CompVis
/// ddpm.py, register_schedule).
constexpr Ignored kIgnored[] = {
    {"betas"},
    {"alphas_cumprod"},
    {"alphas_cumprod_prev"},
    {"sqrt_alphas_cumprod"},
    {"sqrt_one_minus_alphas_cumprod"},
    {"log_one_minus_alphas_cumprod"},
    {"sqrt_recip_alphas_cumprod"},
    {"sqrt_recipm1_alphas_cumprod"},
    {"posterior_variance"},
    {"posterior_log_variance_clipped"},
    {"posterior_mean_coef1"},
    {"posterior_mean_coef2"},
    {"lvlb_weights"},
    {"logvar"},
    {"scale_factor"},
    {"model_ema.", true},
    {"cond_stage_model.logit_scale"},
};

constexpr PartDeclaration kDeclarations[] = {
    {Part::text, "text encoder", "cond_stage_model.transformer.", kTextMarks, {}, kTextIgnored},
    {Part::denoiser, "denoiser", "model.diffusion_model.", kDenoiserMarks, {}, {}},
    {Part::autoencoder, "autoencoder", "first_stage_model.", kAutoencoderMarks, kAutoencoderKlOptional, kAutoencoderIgnored},
};

bool declared(std::span<const Ignored> list, std::string_view name) {
  return std::any_of(list.begin(), list.end(),
                     [&](const Ignored& i) { return i.start ? name.starts_with(i.name) : name == i.name; });
}

}  // namespace

std::span<const PartDeclaration> part_declarations() { return kDeclarations; }

const PartDeclaration& declaration_of(Part part) {
  return *std::find_if(std::begin(kDeclarations), std::end(kDeclarations),
                       [&](const PartDeclaration& d) { return d.part == part; });
}

std::string_view part_name(Part part) { return declaration_of(part).name; }

std::optional<std::string> find_part(const TensorFile& file, Part part) {
  bool bare = false;
  const PartDeclaration& declared = declaration_of(part);
  const std::string_view prefix = declared.prefix;
  const auto belongs = [&](std::string_view name) {
    return std::any_of(declared.marks.begin(), declared.marks.end(),
                       [&](std::string_view mark) { return name.starts_with(mark); });
  };
  const auto look = [&](std::string_view name) {
    if (name.starts_with(prefix) && belongs(name.substr(prefix.size()))) return true;
    bare = bare || belongs(name);
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
  if (declared(kIgnored, name)) return true;
  return std::any_of(std::begin(kDeclarations), std::end(kDeclarations), [&](const PartDeclaration& d) {
    // A file of the part alone has no prefix.
    return declared(d.ignored, name) || (name.starts_with(d.prefix) && declared(d.ignored, name.substr(d.prefix.size())));
  });
}

}  // namespace sluice
