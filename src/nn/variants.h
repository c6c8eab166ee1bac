#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace sluice {

/// Which of several equivalent operator graphs a device uses. Chosen per device by correctness and a table, by shape where sizes
/// matter; never by plan, never by a stopwatch: the arithmetic of a model on a device is fixed by this value.
struct Variants {
  /// Convolutions whose unfolded input (im2col) would exceed this use ggml's direct convolution.
  Bytes im2col_limit = 64 * MiB;
  /// Attention whose score matrix would exceed this is computed for fewer queries at a time.
  Bytes score_limit = 64 * MiB;
  /// Identifies the table in pictures and caches.
  std::uint64_t hash() const;
};

}  // namespace sluice
