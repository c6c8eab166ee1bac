#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/checkpoint.h"
#include "pipeline/settings.h"
#include "residency/weight_store.h"

namespace sluice {

/// The files that make a model. Implicit from a path: a whole checkpoint.
struct ModelFiles {
  ModelFiles(std::string checkpoint) : main(std::move(checkpoint)) {}
  ModelFiles(const char* checkpoint) : main(checkpoint) {}
  ModelFiles(std::string checkpoint, std::string autoencoder, std::string text)
      : main(std::move(checkpoint)), vae(std::move(autoencoder)), clip_l(std::move(text)) {}
  std::string main;
  std::string vae;     ///< its autoencoder takes the checkpoint's place; empty: none
  std::string clip_l;  ///< its text encoder takes the checkpoint's place; empty: none
};

/// A checkpoint registered with a weight store: components and the handles into their models.
struct LoadedModel {
  std::string path, name;  ///< name: the file's without folder and suffix, for picture metadata
  std::shared_ptr<const TensorFile> file;
  Sd1Model parts;  ///< keeps the models alive that the store refers to
  ComponentId text = 0, denoiser = 0, decoder = 0;
  std::optional<ComponentId> encoder;
  std::vector<std::string> sources;  ///< its files' names in the store
  PictureRule rule;
  WeightSource token_table() const;
};

/// Which of the store's devices a model's components may be on, in order.
struct ModelPlaces {
  std::vector<std::size_t> text = {0}, denoiser = {0}, vae = {0};
  /// The rows of the denoiser's and the text encoder's large weights lie spread over their devices, where they may be on
  /// several. Autoencoders have few matrices: their blocks are dealt out as ever.
  bool spread_rows = false;
  std::int64_t spread_from = 256;  ///< rows and columns of a large weight
};

/// Opens a model's files and registers them and its components, all or nothing; of several models in one store, the second's
/// names start with "2: ", and so on. What describes the model as a whole (its native size) is
/// taken from the checkpoint, whatever the other files say. Reads headers only. Errors: those of open_tensor_file, load_sd1 and
/// WeightStore::add.
Result<std::unique_ptr<LoadedModel>> load_model(const ModelFiles& paths, const FileSource& files, WeightStore& store,
                                                const LogSink& log, const ModelPlaces& places = {});

/// Takes a model's components and files out of the store again. Nobody holds them.
void unload_model(const LoadedModel& model, WeightStore& store, const LogSink& log);

}  // namespace sluice
