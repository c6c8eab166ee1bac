#pragma once

#include <string>

#include "base/cancel.h"
#include "io/file.h"

namespace sluice {

/// The "Model hash" of picture metadata as users know it: the first 10 hex digits of the SHA-256 of the whole file.
/// Reads in pieces of 1 MiB through the page cache: the model's pages are wanted there. Cost: the whole file once. Errors: io,
/// cancelled.
Result<std::string> model_hash(const File& file, const CancelToken& cancel = {});

/// A cheap stand-in, for telling files apart in a cache: 64 hex digits of the SHA-256 of the size (8 bytes, little endian) and
/// the first MiB, which holds the header of most models. Two fine-tunes with equal headers may share it: not for metadata.
Result<std::string> quick_hash(const File& file);

}  // namespace sluice
