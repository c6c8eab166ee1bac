#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "io/tensor_file.h"

namespace sluice {

/// The parts a Stable Diffusion 1.x checkpoint is made of.
enum class Part { text, denoiser, autoencoder };
inline constexpr Part kParts[] = {Part::text, Part::denoiser, Part::autoencoder};

/// "text encoder", "denoiser", "autoencoder".
std::string_view part_name(Part part);

/// Under which prefix a part lies in a file, told by names that only this part has: the one of single files, or none ("") for a
/// file of the part alone. nullopt: it is not there.
std::optional<std::string> find_part(const TensorFile& file, Part part);

/// Whether files of this family carry a tensor that no part has a use for: schedules, averaged copies, counters, position
/// numbers, the autoencoder's training losses. `name` as in the file. A list of known names, not a guess.
bool is_ballast(std::string_view name);

}  // namespace sluice
