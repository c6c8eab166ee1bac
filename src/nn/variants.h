#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "ggml-backend.h"

namespace sluice {

/// Which of several equivalent operator graphs a device uses. Chosen per device by correctness and a table, by shape where
/// sizes matter; never by plan, never by a stopwatch: the arithmetic of a model on a device is fixed by this value. The
/// defaults are the CPU's (docs/design/006-operator-variants.md has the measurements).
struct Variants {
  /// Convolutions whose unfolded input (im2col) would exceed this use ggml's direct convolution. 16 MiB is what that takes as
  /// work memory on the CPU, where both give the same bits in about the same time: the smaller of the two is used.
  Bytes im2col_limit = 16 * MiB;
  /// Attention whose score matrices (all heads) would exceed this never makes them whole.
  Bytes score_limit = 0;
  /// How: by flash attention with f32 keys and values, where the device has it for every head size without rounding to f16;
  /// otherwise for a few queries at a time, of as many scores as the limit allows (at least one query).
  bool flash = true;
  /// Identifies the table in pictures and caches.
  std::uint64_t hash() const;
};

/// The table: the CPU's (also for a null device), or one that every backend of ggml can run without loss.
Variants variants_for(ggml_backend_dev_t device);

}  // namespace sluice
