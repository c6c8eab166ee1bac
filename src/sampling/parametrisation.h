#pragma once

#include <span>
#include <string_view>

#include "base/result.h"

namespace sluice {

/// What a network trained on a discrete table predicts.
enum class Prediction {
  eps,  ///< the noise
  v,    ///< Salimans & Ho 2022, equation 8
};
/// "eps", "v". Every value's name parses back to it. Errors: invalid_argument, listing the valid names.
std::string_view prediction_name(Prediction prediction);
Result<Prediction> parse_prediction(std::string_view name);

/// What the network takes: x / sqrt(sigma^2 + 1). f32 in and out, computed in f64; one size; `out` may be `x`.
void scale_input(std::span<const float> x, double sigma, std::span<float> out);

/// D(x, sigma) from the network's output, f32, computed in f64; one size; `out` may be either input.
/// eps: x - sigma out. v: x / (sigma^2 + 1) - out sigma / sqrt(sigma^2 + 1).
void to_denoised(Prediction prediction, std::span<const float> x, std::span<const float> output, double sigma,
                 std::span<float> out);

/// The sinusoids a U-Net gets for timestep t, `out` = [dim]: cos of t · 10000^(-i / (dim/2)) for the first half, sin for the
/// second, 0 in the last place of an odd dim. f64 inside, so fractional and large t lose nothing. Source:
/// CompVis/stable-diffusion, timestep_embedding.
void timestep_embedding(double t, std::span<float> out);

}  // namespace sluice
