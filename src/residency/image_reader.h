#pragma once

#include <atomic>
#include <mutex>
#include <span>
#include <vector>

#include "base/cancel.h"
#include "residency/block_layout.h"

namespace sluice {

/// The one buffer that conversions and gathered small reads pass through. Whoever uses it holds the lock for one piece at a
/// time.
struct Scratch {
  /// More than this is never needed: long tensors go through in pieces.
  static constexpr Bytes kMost = 1 * MiB;
  std::mutex mutex;
  std::vector<std::byte> bytes;  ///< may grow between two pieces, never shrinks

  Bytes size() {
    const std::lock_guard lock(mutex);
    return bytes.size();
  }
};

/// What one positioned read brings: neighbouring weights of one file, or a single one.
struct ReadRun {
  const File* file = nullptr;
  Bytes begin = 0, end = 0;
  std::vector<std::size_t> weights;  ///< indices of the recipes, in file order; tied weights once
};

/// Groups a block's weights into reads: in file order, neighbours (at most alignment padding between them) together up to
/// `most` bytes, larger weights alone. Every byte of a weight is in exactly one run, unless one weight lies inside another.
/// What lies between is padding alone: bytes of other tensors are left to those who want them. Weights marked in `skip` (empty:
/// none) are left out. Pure.
std::vector<ReadRun> plan_reads(std::span<const WeightRecipe> recipes, const BlockLayout& layout, Bytes most,
                                const std::vector<bool>& skip = {});

/// Scratch that read_image wants for this block: enough, not more.
Bytes scratch_size(std::span<const WeightRecipe> recipes);

/// Fills `image` (layout.size bytes) by positioned reads. Weights that need no conversion and fill a read land in place.
/// `uncached`: what was read leaves the system's page cache. `bytes_read` is counted up.
/// Weights marked in `skip` (empty: none) are not touched.
/// Errors: io, corrupt, cancelled (asked before each read); the image is then undefined.
Status read_image(std::span<const WeightRecipe> recipes, const BlockLayout& layout, bool uncached, Scratch& scratch,
                  std::span<std::byte> image, const CancelToken& cancel, std::atomic<Bytes>& bytes_read,
                  const std::vector<bool>& skip = {});

/// Fills `image` from the files' bytes in memory: `files[i]` is all of the file of recipe i. Errors: cancelled.
Status copy_image(std::span<const WeightRecipe> recipes, const BlockLayout& layout,
                  std::span<const std::span<const std::byte>> files, std::span<std::byte> image, const CancelToken& cancel);

}  // namespace sluice
