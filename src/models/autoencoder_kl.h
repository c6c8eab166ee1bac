#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "models/names.h"
#include "nn/model.h"

namespace sluice {

/// One half of the autoencoder, from the frame's side inwards: levels[0] works at full resolution.
struct AutoencoderHalf {
  struct Level {
    std::int64_t channels = 0;
    int blocks = 0;
  };
  std::vector<Level> levels;
  std::int64_t narrow = 0;  ///< width at the latent's side: of the middle blocks
  std::int64_t wide = 0;    ///< width where the frame enters (encoder: conv_in) or leaves (decoder: levels[0])
};

/// AutoencoderKL of latent diffusion under its original names (Rombach et al., arXiv:2112.10752; CompVis model.py).
struct AutoencoderKlConfig {
  std::int64_t image_channels = 3;
  std::int64_t latent_channels = 4;  ///< what the denoiser sees
  std::int64_t z_channels = 4;       ///< inside the quant convolutions
  bool quant_convs = true;           ///< quant_conv and post_quant_conv are there
  AutoencoderHalf decoder;
  std::optional<AutoencoderHalf> encoder;  ///< none where the file has no encoder
  /// Frame pixels per latent pixel along each axis.
  std::int64_t factor() const { return std::int64_t{1} << (decoder.levels.size() - 1); }
};

/// Latent → frame. The latent is unscaled: the caller has divided by the scale factor.
struct AutoencoderDecoder {
  Model model;
  Value latent;  ///< input [w, h, latent_channels, 1] f32, every sweep
  Value image;   ///< output [factor w, factor h, image_channels, 1] f32, nominally -1 … 1, not clamped
};

/// Frame → moments of the posterior.
struct AutoencoderEncoder {
  Model model;
  Value image;    ///< input [factor w, factor h, image_channels, 1] f32, -1 … 1, every sweep
  Value moments;  ///< output [w, h, 2 latent_channels, 1] f32: mean, then log variance (to be clamped to [-30, 20])
};

/// What a file may do without: starts of names, each of which it has all tensors of or none.
inline constexpr std::string_view kAutoencoderKlEncoder = "encoder.", kAutoencoderKlQuant = "quant_conv.",
                                  kAutoencoderKlPostQuant = "post_quant_conv.";
inline constexpr std::string_view kAutoencoderKlOptional[] = {kAutoencoderKlEncoder, kAutoencoderKlQuant,
                                                              kAutoencoderKlPostQuant};

/// Errors: not_found, corrupt, unsupported.
Result<AutoencoderKlConfig> read_autoencoder_kl_config(const Names& names);

/// Blocks: convolution in (with post_quant_conv), each residual block, attention, each upsampling, out. One frame crosses.
AutoencoderDecoder autoencoder_kl_decoder(const AutoencoderKlConfig& config);
/// Blocks: convolution in, each residual block, attention, each downsampling, out (with quant_conv). `config.encoder` must be
/// there.
AutoencoderEncoder autoencoder_kl_encoder(const AutoencoderKlConfig& config);

/// Splits the encoder's moments: `mean` and `log_variance` (clamped to [-30, 20]) are each half as long as `moments`.
void split_moments(std::span<const float> moments, std::span<float> mean, std::span<float> log_variance);

}  // namespace sluice
