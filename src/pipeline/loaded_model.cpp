#include "pipeline/loaded_model.h"

#include <filesystem>

namespace sluice {
namespace {

ComponentSpec spec_of(std::string name, const Component& component) {
  ComponentSpec spec{std::move(name), component.model.get(), {}};
  for (const auto& block : component.origins) {
    std::vector<WeightSource> sources;
    for (const auto& origin : block) sources.push_back({origin.file, origin.tensor});
    spec.sources.push_back(std::move(sources));
  }
  return spec;
}

}  // namespace

WeightSource LoadedModel::token_table() const { return {parts.text.tokens.origin.file, parts.text.tokens.origin.tensor}; }

Result<std::unique_ptr<LoadedModel>> load_model(const ModelFiles& paths, const FileSource& files, WeightStore& store,
                                                const LogSink& log) {
  const std::string& path = paths.main;
  auto model = std::make_unique<LoadedModel>();
  model->path = path;
  model->name = std::filesystem::path(path).stem().string();
  const auto open = [&](const std::string& name) -> Result<std::shared_ptr<const TensorFile>> {
    if (name.empty()) return nullptr;
    SLUICE_ASSIGN(auto file, open_tensor_file(name, files));
    for (const auto& warning : file->warnings) log(LogLevel::warning, "{}: {}", name, warning);
    return file;
  };
  Sd1Files sd1;
  SLUICE_ASSIGN(sd1.main, open(path));
  SLUICE_ASSIGN(sd1.autoencoder, open(paths.vae));
  SLUICE_ASSIGN(sd1.text, open(paths.clip_l));
  model->file = sd1.main;
  // Both states that SD 1.x prompts can take: the last layer's, and with clip skip 2 the one before it.
  auto parts = load_sd1(sd1, {.last_hidden = true, .skipped_ln = true, .skip = 1});
  if (!parts) return fail_while(path, std::move(parts).error());
  model->parts = std::move(*parts);
  for (const auto& warning : model->parts.warnings) log(LogLevel::warning, "{}", warning);

  std::vector<ComponentId> added;
  const auto add = [&](const char* name, const Component& component) -> Result<ComponentId> {
    auto id = store.add(spec_of(name, component));
    if (id) added.push_back(*id);
    return id;
  };
  const auto add_all = [&]() -> Status {
    SLUICE_ASSIGN(model->text, add("text encoder", model->parts.text.component));
    SLUICE_ASSIGN(model->denoiser, add("denoiser", model->parts.denoiser.component));
    SLUICE_ASSIGN(model->decoder, add("decoder", model->parts.autoencoder.decoder));
    if (model->parts.autoencoder.encoder) {
      SLUICE_ASSIGN(model->encoder, add("image encoder", *model->parts.autoencoder.encoder));
    }
    return {};
  };
  if (auto done = add_all(); !done) {
    for (const ComponentId id : added) {
      if (auto removed = store.remove(id); !removed) log(LogLevel::error, "{}", removed.error().message);
    }
    return fail_while(path, std::move(done).error());
  }
  model->rule.native_width = static_cast<int>(model->parts.native_width);
  model->rule.native_height = static_cast<int>(model->parts.native_height);
  model->rule.factor = static_cast<int>(model->parts.autoencoder.config.factor());
  model->rule.latent_multiple = static_cast<int>(model->parts.denoiser.config.latent_multiple());
  model->rule.latent_channels = static_cast<int>(model->parts.autoencoder.config.latent_channels);
  return model;
}

}  // namespace sluice
