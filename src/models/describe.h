#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/prefixes.h"

namespace sluice {

/// What a file holds of one part.
struct PartSummary {
  Part part = Part::text;
  std::string prefix;
  std::vector<std::pair<std::string, std::int64_t>> dimensions;  ///< e.g. {"hidden", 768}; empty where they could not be read
  std::size_t tensors = 0;
  Bytes bytes = 0;
  std::map<std::string, Bytes> dtypes;  ///< bytes by dtype; block types under ggml's name, e.g. "q4_0"
  std::vector<std::string> missing;     ///< "name [shape]"
  std::vector<std::string> wrong;       ///< wrong shapes and unreadable dtypes, each a sentence
  std::string problem;                  ///< why the part cannot be used at all, if so
  bool complete() const { return missing.empty() && wrong.empty() && problem.empty(); }
};

/// What a file holds, for people and `sluice inspect`.
struct FileDescription {
  std::string architecture;         ///< "Stable Diffusion 1.x", "parts of Stable Diffusion 1.x" or "unknown"
  std::vector<PartSummary> parts;   ///< those it has
  std::size_t ballast_tensors = 0;  ///< known and useless
  Bytes ballast_bytes = 0;
  std::size_t other_tensors = 0;  ///< not known
  Bytes other_bytes = 0;
};

/// Never fails: what cannot be read is said in the summary. Reads no data.
FileDescription describe(const TensorFile& file);

}  // namespace sluice
