#pragma once

#include <memory>

#include "io/tensor_file.h"

namespace sluice {

/// Reads the header of a safetensors file; the rules and their reasons are in docs/formats/safetensors.md.
/// Errors: io; corrupt (file, tensor and what is wrong with it).
Result<std::shared_ptr<const TensorFile>> open_safetensors(const std::shared_ptr<const File>& file);

}  // namespace sluice
