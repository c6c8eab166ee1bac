#pragma once

#include <optional>
#include <span>
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

/// Tensors that files of this family carry and no part has a use for, by their name in the file or (`start`) by how all names
/// of a kind start.
struct Ignored {
  std::string_view name;
  bool start = false;
};

/// What a part's place in a file declares.
struct PartDeclaration {
  Part part;
  std::string_view name;                    ///< for messages
  std::string_view prefix;                  ///< the customary one in files of several parts
  std::span<const std::string_view> marks;  ///< starts of names, without prefix, by which the part is told
  /// Starts of names, without prefix, of tensors that a file has all of or none of: what is made from them is optional.
  std::span<const std::string_view> optional;
  std::span<const Ignored> ignored;  ///< without prefix
};
/// One for each part. A constant.
std::span<const PartDeclaration> part_declarations();
const PartDeclaration& declaration_of(Part part);

/// Whether a name in a file is declared as ignored: by a part, or beside all parts (schedules, averaged copies, counters).
bool is_ballast(std::string_view name);

}  // namespace sluice
