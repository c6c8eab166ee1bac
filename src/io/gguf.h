#pragma once

#include <memory>

#include "io/tensor_file.h"

namespace sluice {

/// Reads the header of a GGUF file (versions 2 and 3, little endian); the rules are in docs/formats/gguf.md. The walk is ours
/// and goes through `File`, so that read errors can be injected and no foreign byte can abort; ggml is asked about types only.
/// Errors: io; corrupt; unsupported (version 1, big endian, a type id this ggml does not have: file, tensor and id are named).
/// Cost: reads the header once in pieces of 64 KiB; arrays (vocabularies) are walked over, not kept, except numeric ones of up
/// to 16 elements, whose text in `metadata` is "[1, 2, 3]".
Result<std::shared_ptr<const TensorFile>> open_gguf(std::shared_ptr<const File> file);

}  // namespace sluice
