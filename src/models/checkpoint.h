#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/autoencoder_kl.h"
#include "models/clip_text.h"
#include "models/component.h"
#include "models/sd_unet.h"

namespace sluice {

/// The token embedding table of a text encoder: rows are gathered on the host.
struct TokenTable {
  WeightOrigin origin;  ///< [width, rows]
  std::int64_t width = 0, rows = 0;
};

/// Handles into a component's model, without the model.
struct TextValues {
  Value embedded;
  std::optional<Value> last_hidden, skipped, skipped_ln, projected;
};
struct DenoiserValues {
  Value x, t_emb, context, eps;
};
struct DecoderValues {
  Value latent, image;
};
struct EncoderValues {
  Value image, moments;
};

struct TextEncoderPart {
  ClipTextConfig config;
  Component component;
  TextValues values;
  TokenTable tokens;
};
struct DenoiserPart {
  SdUnetConfig config;
  Component component;
  DenoiserValues values;
};
struct AutoencoderPart {
  AutoencoderKlConfig config;
  Component decoder;
  DecoderValues decoder_values;
  std::optional<Component> encoder;  ///< none where the file has none
  EncoderValues encoder_values;      ///< meaningful with `encoder`
};

/// Each part by itself, from the first prefix it is found under: the customary one of single files, then none.
/// Nothing but names and shapes is looked at. Errors: not_found, corrupt, unsupported, invalid_argument (outputs).
Result<TextEncoderPart> load_clip_text(const std::shared_ptr<const TensorFile>& file, const ClipTextOutputs& outputs);
Result<DenoiserPart> load_sd_unet(const std::shared_ptr<const TensorFile>& file);
Result<AutoencoderPart> load_autoencoder_kl(const std::shared_ptr<const TensorFile>& file);

/// Files that make one model: `main`, and files that replace parts of it.
struct Sd1Files {
  std::shared_ptr<const TensorFile> main;
  std::shared_ptr<const TensorFile> text;         ///< null: main
  std::shared_ptr<const TensorFile> autoencoder;  ///< null: main
};

/// Stable Diffusion 1.x, ready to be registered.
struct Sd1Model {
  TextEncoderPart text;
  DenoiserPart denoiser;
  AutoencoderPart autoencoder;
  double latent_scale = 0.18215;                         ///< latents of the denoiser = autoencoder's × this
  std::int64_t native_width = 512, native_height = 512;  ///< pixels: the file's `modelspec.resolution`, else the architecture's
  std::vector<std::string> warnings;                     ///< e.g. tensors that nothing uses
  /// Width and height of a picture must be multiples of this, in pixels.
  std::int64_t pixel_multiple() const { return denoiser.config.latent_multiple() * autoencoder.config.factor(); }
};

/// Loads all parts. `text_outputs`: see ClipTextOutputs (SD1.x: last_hidden, or skipped_ln with skip = clip skip - 1).
/// The architecture follows from the tensors, not from metadata. Reads no data; cost: a look-up per weight.
/// Errors: not_found, corrupt, unsupported (another architecture, parts that do not fit one another), invalid_argument.
Result<Sd1Model> load_sd1(const Sd1Files& files, const ClipTextOutputs& text_outputs);

}  // namespace sluice
