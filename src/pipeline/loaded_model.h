#pragma once

#include <memory>
#include <string>

#include "models/checkpoint.h"
#include "pipeline/settings.h"
#include "residency/weight_store.h"

namespace sluice {

/// A checkpoint registered with a weight store: components and the handles into their models.
struct LoadedModel {
  std::string path, name;  ///< name: the file's without folder and suffix, for picture metadata
  std::shared_ptr<const TensorFile> file;
  Sd1Model parts;  ///< keeps the models alive that the store refers to
  ComponentId text = 0, denoiser = 0, decoder = 0;
  std::optional<ComponentId> encoder;
  PictureRule rule;
  WeightSource token_table() const;
};

/// Opens a checkpoint and registers its components, all or nothing. Reads headers only. Errors: those of open_tensor_file,
/// load_sd1 and WeightStore::add.
Result<std::unique_ptr<LoadedModel>> load_model(const std::string& path, const FileSource& files, WeightStore& store,
                                                const LogSink& log);

}  // namespace sluice
