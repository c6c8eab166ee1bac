#pragma once

#include <vector>

#include "sampling/guidance.h"
#include "sampling/random.h"
#include "sampling/sampler.h"
#include "sampling/schedule.h"
#include "sluice/engine.h"
#include "text/emphasis.h"

namespace sluice {

/// What the model fixes about pictures.
struct PictureRule {
  int native_width = 512, native_height = 512;
  int factor = 8;           ///< pixels per latent element
  int latent_multiple = 8;  ///< latent sides must be multiples of this (a power of two)
  int latent_channels = 4;
  int multiple() const { return factor * latent_multiple; }
};

/// A request after every check: names parsed, sizes filled in, seed chosen.
struct Settings {
  Request request;  ///< with width, height and seed filled in
  SamplerKind sampler = SamplerKind::euler;
  ScheduleKind schedule = ScheduleKind::discrete;
  RandomKind rng = RandomKind::cuda;
  Emphasis emphasis = Emphasis::mean;
  GuidancePasses passes;
  std::int64_t latent_width = 0, latent_height = 0, latent_channels = 4;
  /// Empty, or for each image of the batch the noise it starts from: unit normal, [W, H, C] of the latent. It takes the place
  /// of the first draw of the image's random stream; that draw is skipped over, so later ones (ancestral samplers) are the
  /// seed's own. For comparing with other engines' noise; no request says it. Wrong sizes are refused by TextToImage::draw.
  std::vector<std::vector<float>> start_noise;
};

/// Largest picture side and batch that are accepted; larger ones are refused at entry, not by an allocation.
inline constexpr int kLargestSide = 16384;
inline constexpr int kLargestBatch = 64;

/// Checks a request against the model's rules. Size 0 means the native one; a size must be a positive multiple of
/// rule.multiple(), else the error names the nearest valid sizes. Seed −1 becomes a random one below 2^31.
/// Errors: invalid_argument, always with what would be accepted.
Result<Settings> check_request(const Request& request, const PictureRule& rule);

}  // namespace sluice
