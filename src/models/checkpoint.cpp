#include "models/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include <fmt/format.h>

#include "base/utf8.h"
#include "models/prefixes.h"

namespace sluice {
namespace {

std::string path_of(const TensorFile& file) { return file.file ? file.file->path() : std::string("model"); }

Result<Names> names_of(const TensorFile& file, Part part) {
  const auto prefix = find_part(file, part);
  if (!prefix) {
    return fail(Code::not_found,
                fmt::format("{} holds no {} of Stable Diffusion 1.x: give a whole checkpoint, or a file for this part",
                            path_of(file), part_name(part)));
  }
  return Names(file, *prefix);
}

/// "64x64" and the like; anything else, 0 or more than 65536 is no size.
std::optional<std::pair<std::int64_t, std::int64_t>> parse_resolution(std::string_view text) {
  std::int64_t size[2];
  const char* at = text.data();
  const char* end = at + text.size();
  for (int i = 0; i < 2; ++i) {
    const auto [next, error] = std::from_chars(at, end, size[i]);
    if (error != std::errc() || size[i] < 1 || size[i] > 65536) return std::nullopt;
    if (i == 0 && (next == end || (*next != 'x' && *next != 'X'))) return std::nullopt;
    if (i == 1 && next != end) return std::nullopt;
    at = next + 1;
  }
  return std::pair{size[0], size[1]};
}

/// A warning for the tensors of `file` that no component uses and no file of the family is known to carry for nothing.
void warn_of_unused(const std::shared_ptr<const TensorFile>& file, const std::vector<const Component*>& components,
                    const std::unordered_set<std::string>& also_known, std::vector<std::string>& warnings) {
  std::vector<bool> used(file->tensors.size());
  for (const Component* component : components) {
    for (const auto& block : component->origins) {
      for (const auto& origin : block) {
        if (origin.file == file) used[origin.tensor] = true;
      }
    }
  }
  std::size_t count = 0;
  std::string shown;
  const auto note = [&](const std::string& name) {
    if (is_ballast(name) || also_known.contains(name)) return;
    if (++count <= 5) shown += (shown.empty() ? "" : ", ") + printable(name);
  };
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) note(file->tensors[i].name);
  }
  for (const auto& name : file->unknown) note(name);
  if (count > 0) {
    warnings.push_back(fmt::format("{}: {} tensors are not used: {}{}", path_of(*file), count, shown, count > 5 ? ", …" : ""));
  }
}

}  // namespace

Result<TextEncoderPart> load_clip_text(const std::shared_ptr<const TensorFile>& file, const ClipTextOutputs& outputs) {
  SLUICE_ASSIGN(const Names names, names_of(*file, Part::text));
  TextEncoderPart part;
  auto config = read_clip_text_config(names);
  if (!config) return fail_while(path_of(*file) + ": text encoder", std::move(config).error());
  part.config = *config;
  SLUICE_ASSIGN(auto text, clip_text(part.config, outputs));
  part.values = {text.embedded, text.last_hidden, text.skipped, text.skipped_ln, text.projected};
  SLUICE_ASSIGN(part.component, join(std::move(text.model), file, names.prefix()));
  SLUICE_ASSIGN(const std::int64_t width, names.dimension({kClipTokenTable}, 0));
  if (width != part.config.hidden) {
    return fail(Code::corrupt,
                fmt::format("{}: the token table is {} wide, the text encoder {}", path_of(*file), width, part.config.hidden));
  }
  part.tokens = {{file, file->index.at(fmt::format("{}{}", names.prefix(), kClipTokenTable))}, width, part.config.vocabulary};
  if (part.tokens.origin.info().shape.size() != 2) {
    return fail(Code::corrupt,
                fmt::format("{}: the token table has {} dimensions", path_of(*file), part.tokens.origin.info().shape.size()));
  }
  return part;
}

Result<DenoiserPart> load_sd_unet(const std::shared_ptr<const TensorFile>& file) {
  SLUICE_ASSIGN(const Names names, names_of(*file, Part::denoiser));
  DenoiserPart part;
  auto config = read_sd_unet_config(names);
  if (!config) return fail_while(path_of(*file) + ": denoiser", std::move(config).error());
  part.config = *std::move(config);
  auto unet = sd_unet(part.config);
  part.values = {unet.x, unet.t_emb, unet.context, unet.eps};
  SLUICE_ASSIGN(part.component, join(std::move(unet.model), file, names.prefix()));
  return part;
}

Result<AutoencoderPart> load_autoencoder_kl(const std::shared_ptr<const TensorFile>& file) {
  SLUICE_ASSIGN(const Names names, names_of(*file, Part::autoencoder));
  AutoencoderPart part;
  auto config = read_autoencoder_kl_config(names);
  if (!config) return fail_while(path_of(*file) + ": autoencoder", std::move(config).error());
  part.config = *std::move(config);
  auto decoder = autoencoder_kl_decoder(part.config);
  part.decoder_values = {decoder.latent, decoder.image};
  SLUICE_ASSIGN(part.decoder, join(std::move(decoder.model), file, names.prefix()));
  if (part.config.encoder) {
    auto encoder = autoencoder_kl_encoder(part.config);
    part.encoder_values = {encoder.image, encoder.moments};
    SLUICE_ASSIGN(part.encoder, join(std::move(encoder.model), file, names.prefix()));
  }
  return part;
}

Result<Sd1Model> load_sd1(const Sd1Files& files, const ClipTextOutputs& text_outputs) {
  const auto text_file = files.text ? files.text : files.main;
  const auto autoencoder_file = files.autoencoder ? files.autoencoder : files.main;
  Sd1Model model;
  SLUICE_ASSIGN(model.denoiser, load_sd_unet(files.main));
  SLUICE_ASSIGN(model.text, load_clip_text(text_file, text_outputs));
  SLUICE_ASSIGN(model.autoencoder, load_autoencoder_kl(autoencoder_file));

  const auto& unet = model.denoiser.config;
  if (unet.context != model.text.config.hidden) {
    return fail(
        Code::unsupported,
        fmt::format("the denoiser takes text states of width {}, the text encoder gives {}: the files do not belong together",
                    unet.context, model.text.config.hidden));
  }
  if (unet.out_channels != model.autoencoder.config.latent_channels) {
    return fail(
        Code::unsupported,
        fmt::format("the denoiser makes latents of {} channels, the autoencoder takes {}: the files do not belong together",
                    unet.out_channels, model.autoencoder.config.latent_channels));
  }
  if (unet.in_channels != unet.out_channels) {
    return fail(
        Code::unsupported,
        fmt::format("the denoiser takes {} channels and makes {}: inpainting and other conditioned models are not supported",
                    unet.in_channels, unet.out_channels));
  }
  if (model.autoencoder.config.image_channels != 3) {
    return fail(Code::unsupported, fmt::format("the autoencoder makes pictures of {} channels instead of 3",
                                               model.autoencoder.config.image_channels));
  }

  if (const auto found = files.main->metadata.find("modelspec.resolution"); found != files.main->metadata.end()) {
    if (const auto size = parse_resolution(found->second)) {
      std::tie(model.native_width, model.native_height) = *size;
    } else {
      model.warnings.push_back(
          fmt::format("{}: modelspec.resolution '{}' is no size", path_of(*files.main), printable(found->second)));
    }
  }

  std::vector<const Component*> components = {&model.denoiser.component, &model.text.component, &model.autoencoder.decoder};
  if (model.autoencoder.encoder) components.push_back(&*model.autoencoder.encoder);
  // Layers that a clip skip leaves out are no strangers, nor are parts that another file replaces.
  std::unordered_set<std::string> known;
  ClipTextOutputs all;
  all.skip = 0;
  SLUICE_ASSIGN(const auto whole_text, clip_text(model.text.config, all));
  const std::string text_prefix = find_part(*text_file, Part::text).value_or("");
  for (const auto& block : whole_text.model.blocks) {
    for (const auto& weight : block.weights) known.insert(text_prefix + weight.name);
  }
  for (const Part part : {Part::text, Part::autoencoder}) {
    if ((part == Part::text ? text_file : autoencoder_file) == files.main) continue;
    const auto prefix = find_part(*files.main, part);
    if (!prefix) continue;
    for (const auto& tensor : files.main->tensors) {
      if (!prefix->empty() && tensor.name.starts_with(*prefix)) known.insert(tensor.name);
    }
  }
  std::vector<std::shared_ptr<const TensorFile>> seen;
  for (const auto& file : {files.main, text_file, autoencoder_file}) {
    if (std::find(seen.begin(), seen.end(), file) != seen.end()) continue;
    seen.push_back(file);
    warn_of_unused(file, components, known, model.warnings);
  }
  return model;
}

}  // namespace sluice
