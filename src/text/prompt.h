#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// A stretch of prompt and how much it counts.
struct WeightedText {
  std::string text;
  double weight = 1.0;
  bool operator==(const WeightedText&) const = default;
};

/// No weight leaves [-kMaxWeight, kMaxWeight], however deep the nesting, so that no product overflows.
inline constexpr double kMaxWeight = 1000.0;

/// Splits a prompt at its emphasis, as users of AUTOMATIC1111's web UI write it (its wiki, "Attention/emphasis"):
///
///   (x)       × 1.1          (x:1.3)   × 1.3, any decimal number, sign allowed
///   [x]       ÷ 1.1          nesting multiplies
///   \( \) \[ \] \\           the character itself
///
/// Whatever is not balanced is still a prompt: a closing bracket without its opening one is text; a bracket that is never
/// closed reaches to the end, × 1.1 or ÷ 1.1, as it does there. ":1.3)" counts only where a round bracket is open, else it is
/// text, as is a number that is none, and as are more than 64 open brackets of one kind. Neighbours of equal weight are joined,
/// so that words are tokenised whole; empty pieces are left out. Returns at least one piece: {"", 1} for a prompt without text.
/// Never fails, whatever the bytes. Cost: linear.
std::vector<WeightedText> parse_prompt(std::string_view prompt);

}  // namespace sluice
