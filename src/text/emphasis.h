#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice {

/// What happens to the text states z of weighted tokens. Both multiply each token's state by its weight w.
enum class Emphasis {
  mean,  ///< and then everything by mean(z) / mean(z·w), over all chunks of the prompt together: the default
  none,  ///< and leave it at that: no mean is restored
};

/// "mean", "none". Every value's name parses back to it.
std::string_view emphasis_name(Emphasis mode);
/// Errors: invalid_argument, listing the valid names.
Result<Emphasis> parse_emphasis(std::string_view name);

/// Weighs text states in place. `states`: [hidden, tokens], f32, all chunks one after another; `weights`: [tokens].
/// Where all weights are 1, no bit changes. Where mean(z·w) is so small that the quotient is not finite, no mean is restored.
/// Means are summed in f64. Errors: invalid_argument if the sizes do not divide.
Status apply_emphasis(std::span<float> states, std::span<const float> weights, Emphasis mode);

}  // namespace sluice
