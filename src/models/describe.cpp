#include "models/describe.h"

#include <fmt/format.h>

#include "models/autoencoder_kl.h"
#include "models/clip_text.h"
#include "models/component.h"
#include "models/sd_unet.h"

namespace sluice {
namespace {

std::string dtype_text(const TensorInfo& info) {
  if (info.dtype == DType::quantised) return ggml_type_name(info.ggml);
  return std::string(dtype_name(info.dtype));
}

void add_misfits(PartSummary& summary, const Model& model, const TensorFile& file) {
  Misfits misfits = find_misfits(model, file, summary.prefix);
  std::move(misfits.missing.begin(), misfits.missing.end(), std::back_inserter(summary.missing));
  for (auto& name : misfits.unreadable) summary.wrong.push_back(name + ": a dtype this build cannot read");
  std::move(misfits.wrong_shape.begin(), misfits.wrong_shape.end(), std::back_inserter(summary.wrong));
}

Status describe_text(PartSummary& summary, const TensorFile& file) {
  const Names names(file, summary.prefix);
  SLUICE_ASSIGN(const auto c, read_clip_text_config(names));
  summary.dimensions = {{"layers", c.layers},         {"hidden", c.hidden},
                        {"heads", c.heads},           {"intermediate", c.intermediate},
                        {"vocabulary", c.vocabulary}, {"positions", c.positions}};
  if (c.projection > 0) summary.dimensions.emplace_back("projection", c.projection);
  SLUICE_ASSIGN(const auto text, clip_text(c, {}));
  add_misfits(summary, text.model, file);
  return {};
}

Status describe_denoiser(PartSummary& summary, const TensorFile& file) {
  const Names names(file, summary.prefix);
  SLUICE_ASSIGN(const auto c, read_sd_unet_config(names));
  summary.dimensions = {{"input blocks", static_cast<std::int64_t>(c.input.size())},
                        {"model channels", c.model_channels},
                        {"widest", c.input.back().channels},
                        {"heads", c.heads},
                        {"context", c.context},
                        {"in channels", c.in_channels},
                        {"out channels", c.out_channels}};
  add_misfits(summary, sd_unet(c).model, file);
  return {};
}

Status describe_autoencoder(PartSummary& summary, const TensorFile& file) {
  const Names names(file, summary.prefix);
  SLUICE_ASSIGN(const auto c, read_autoencoder_kl_config(names));
  summary.dimensions = {{"levels", static_cast<std::int64_t>(c.decoder.levels.size())},
                        {"factor", c.factor()},
                        {"latent channels", c.latent_channels},
                        {"widest", c.decoder.narrow},
                        {"encoder", c.encoder ? 1 : 0}};
  add_misfits(summary, autoencoder_kl_decoder(c).model, file);
  if (c.encoder) add_misfits(summary, autoencoder_kl_encoder(c).model, file);
  return {};
}

}  // namespace

FileDescription describe(const TensorFile& file) {
  FileDescription summary;
  std::vector<bool> counted(file.tensors.size());
  for (const Part part : kParts) {
    const auto prefix = find_part(file, part);
    if (!prefix) continue;
    PartSummary& s = summary.parts.emplace_back();
    s.part = part;
    s.prefix = *prefix;
    for (std::size_t i = 0; i < file.tensors.size(); ++i) {
      const auto& tensor = file.tensors[i];
      if (!tensor.name.starts_with(*prefix) || (prefix->empty() && counted[i])) continue;
      counted[i] = true;
      ++s.tensors;
      s.bytes += tensor.size;
      s.dtypes[dtype_text(tensor)] += tensor.size;
    }
    const Status status = part == Part::text       ? describe_text(s, file)
                          : part == Part::denoiser ? describe_denoiser(s, file)
                                                   : describe_autoencoder(s, file);
    if (!status) s.problem = status.error().message;
  }
  summary.architecture = summary.parts.size() == std::size(kParts) ? "Stable Diffusion 1.x"
                         : summary.parts.empty()                   ? "unknown"
                                                                   : "parts of Stable Diffusion 1.x";
  for (std::size_t i = 0; i < file.tensors.size(); ++i) {
    if (counted[i]) continue;
    const auto& tensor = file.tensors[i];
    (is_ballast(tensor.name) ? summary.ballast_tensors : summary.other_tensors) += 1;
    (is_ballast(tensor.name) ? summary.ballast_bytes : summary.other_bytes) += tensor.size;
  }
  return summary;
}

}  // namespace sluice
