#include "pipeline/loaded_model.h"

#include <fmt/format.h>

#include <filesystem>

namespace sluice {
namespace {

constexpr int kMostModels = 1000;

ComponentSpec spec_of(std::string name, const Component& component, const std::vector<std::size_t>& devices) {
  ComponentSpec spec;
  spec.name = std::move(name);
  spec.model = component.model.get();
  spec.devices = devices;
  for (const auto& block : component.origins) {
    std::vector<WeightSource> sources;
    for (const auto& origin : block) sources.push_back({origin.file, origin.tensor});
    spec.sources.push_back(std::move(sources));
  }
  return spec;
}

/// Nobody holds what goes, so that a refusal is a bug: it is logged, and what can go goes.
void take_out(const std::vector<ComponentId>& components, const std::vector<std::string>& sources, WeightStore& store,
              const LogSink& log) {
  for (const ComponentId id : components) {
    if (auto removed = store.remove(id); !removed) log(LogLevel::error, "{}", removed.error().message);
  }
  for (const auto& name : sources) {
    if (auto removed = store.remove_source(name); !removed) log(LogLevel::error, "{}", removed.error().message);
  }
}

}  // namespace

WeightSource LoadedModel::token_table() const { return {parts.text.tokens.origin.file, parts.text.tokens.origin.tensor}; }

Result<std::unique_ptr<LoadedModel>> load_model(const ModelFiles& paths, const FileSource& files, WeightStore& store,
                                                const LogSink& log, const ModelPlaces& places) {
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

  std::string label;
  for (int n = 2; !store.add_source(label + "model", sd1.main) && n < kMostModels; ++n) label = fmt::format("{}: ", n);
  model->sources.push_back(label + "model");
  std::vector<ComponentId> added;
  const auto add_source = [&](const char* name, const std::shared_ptr<const TensorFile>& file) -> Status {
    if (!file) return {};
    SLUICE_TRY(store.add_source(label + name, file));
    model->sources.push_back(label + name);
    return {};
  };
  const auto add = [&](const char* name, const Component& component, const std::vector<std::size_t>& devices,
                       bool rows = false) -> Result<ComponentId> {
    ComponentSpec spec = spec_of(label + name, component, devices);
    spec.split_rows = rows && places.spread_rows && devices.size() > 1;
    spec.split_from = places.spread_from;
    auto id = store.add(std::move(spec));
    if (id) added.push_back(*id);
    return id;
  };
  const auto add_all = [&]() -> Status {
    SLUICE_TRY(add_source("vae", sd1.autoencoder));
    SLUICE_TRY(add_source("clip-l", sd1.text));
    SLUICE_ASSIGN(model->text, add("text encoder", model->parts.text.component, places.text, true));
    SLUICE_ASSIGN(model->denoiser, add("denoiser", model->parts.denoiser.component, places.denoiser, true));
    SLUICE_ASSIGN(model->decoder, add("decoder", model->parts.autoencoder.decoder, places.vae));
    if (model->parts.autoencoder.encoder) {
      SLUICE_ASSIGN(model->encoder, add("image encoder", *model->parts.autoencoder.encoder, places.vae));
    }
    return {};
  };
  if (auto done = add_all(); !done) {
    take_out(added, model->sources, store, log);
    return fail_while(path, std::move(done).error());
  }
  model->rule.native_width = static_cast<int>(model->parts.native_width);
  model->rule.native_height = static_cast<int>(model->parts.native_height);
  model->rule.factor = static_cast<int>(model->parts.autoencoder.config.factor());
  model->rule.latent_multiple = static_cast<int>(model->parts.denoiser.config.latent_multiple());
  model->rule.latent_channels = static_cast<int>(model->parts.autoencoder.config.latent_channels);
  return model;
}

void unload_model(const LoadedModel& model, WeightStore& store, const LogSink& log) {
  std::vector<ComponentId> components{model.text, model.denoiser, model.decoder};
  if (model.encoder) components.push_back(*model.encoder);
  take_out(components, model.sources, store, log);
}

}  // namespace sluice
