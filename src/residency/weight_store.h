#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "device/arena.h"
#include "device/device.h"
#include "io/tensor_file.h"
#include "nn/model.h"
#include "residency/block_layout.h"
#include "residency/resident_table.h"
#include "residency/weight_recipe.h"

namespace sluice {

/// One component (denoiser, text encoder, …) to be registered: its model's declarations with a source for each weight.
struct ComponentSpec {
  std::string name;
  const Model* model = nullptr;                    ///< outlives the registration
  std::vector<std::vector<WeightSource>> sources;  ///< [block][weight], parallel to model->blocks[].weights
};

/// How host copies are kept between uses.
enum class HostTier {
  disk,    ///< nothing is kept: each use reads the file (positioned reads, dropped from the page cache)
  mapped,  ///< the file is mapped; images are put together from the mapping at each use
  read,    ///< images are read once and kept in pageable or pinned memory, as the host budget allows
};

/// Every weight of every component: where its bytes come from and where copies of them live.
/// Threads: registration from one thread; `fetch` from the link thread beside it for other components; all else from any
/// thread. A ComponentId or BlockId that `add` did not return, or whose component was removed, is a bug.
class WeightStore {
 public:
  struct Options {
    HostTier tier = HostTier::mapped;
    std::optional<Bytes> host_budget;  ///< for kept images and staging; none: unlimited
    LogSink log;
  };
  /// `device` outlives the store.
  WeightStore(Device& device, Options options);
  ~WeightStore();

  /// Registers all or nothing. Shapes and types are validated before anything large is allocated: one error with component,
  /// count and the first five tensors (got, expected). Maps the files (HostTier::mapped) or books host memory for the images to
  /// be kept (HostTier::read; one warning if not all fit), taking back bookings of components that nobody holds where the
  /// largest image that is not kept would find no staging. Reads nothing. Errors: not_found, invalid_argument, unsupported,
  /// over_budget (host), io.
  Result<ComponentId> add(ComponentSpec spec);
  /// Forgets a component and its copies. Errors: invalid_argument while it is held or one of its blocks is being fetched.
  Status remove(ComponentId component);
  /// Whoever has tensors bound to a component's blocks holds it: until the last Hold is gone, `remove` is refused.
  using Hold = std::shared_ptr<const void>;
  Hold hold(ComponentId component) const;

  const BlockLayout& layout(BlockId block) const;
  const Model& model(ComponentId component) const;
  /// How many are registered now.
  std::size_t components() const;
  /// Sum of layout sizes.
  Bytes weight_bytes(ComponentId component) const;
  /// Bytes of the component's weights in their files; tied ones (same bytes, same device type) count once.
  Bytes file_bytes(ComponentId component) const;

  /// Error (io: "load it again") if a file of a registered component changed since it was opened. Asked before each stage,
  /// since a mapping does not survive truncation. Cost: two system calls per file.
  Status check_sources() const;

  /// The block's image in host memory. With HostTier::read it is the kept copy (made at first use, each file byte read once);
  /// otherwise `staging` (≥ layout size) is filled and returned. Thread safe for distinct blocks; `cancel` is asked between
  /// pieces. An error leaves the block as it was before; the next call starts anew. Errors: io, corrupt, device_oom (host
  /// memory for a kept image, and no staging to do without), invalid_argument (staging too small), cancelled.
  Result<std::span<const std::byte>> fetch(BlockId block, std::span<std::byte> staging, const CancelToken& cancel);
  /// Whether `fetch` needs staging memory for this block.
  bool needs_staging(BlockId block) const;

  /// In-place use: binds `tensor` (no memory yet, the layout's type and shape) to the file's mapping and returns true, or
  /// returns false where `mappable` is false (then the image is used). The first tensor of a block books the block's bytes on
  /// the device's ledger as Use::mapped, until give_up or remove. The caller holds the component while the tensor lives.
  /// Errors: over_budget, invalid_argument (another type or shape), device_failed.
  Result<bool> bind_mapped(BlockId block, std::size_t weight, ggml_tensor* tensor);
  /// Whether every weight of the block can be used in place: the CPU device, HostTier::mapped, identity recipes at offsets
  /// aligned for the device. Such a block needs no copy and no arena bytes. False for a block without weights.
  bool mappable(BlockId block) const;

  /// Where a block lives on the device, if it does. Set when its copy into a resident place is complete.
  std::optional<Address> resident(BlockId block) const;
  /// What lived in those bytes before is given up.
  void set_resident(BlockId block, Address address);
  /// Gives up the device copy (its backing stays), or the booking of a block used in place, whose bound tensors are not to be
  /// used any more. No-op when there is neither.
  void give_up(BlockId block);
  /// Blocks whose resident places overlap [from, to), by address.
  std::vector<BlockId> residents_in(Address from, Address to) const;

  /// Gathers rows of a 2-D table (token embeddings) on the host: out[i] = table[rows[i]], widened to f32, shape [width,
  /// rows.size()]. Positioned reads of just those rows, each once however often it is asked for; nothing is kept. Errors:
  /// invalid_argument (row out of range, size of `out`), not_found, unsupported, io.
  static Status gather_rows(const WeightSource& table, std::span<const std::int32_t> rows, std::span<float> out);

  /// The books of host memory: kept images, the conversion buffer, and what callers reserve for staging. Limit: host_budget.
  Ledger& host_ledger();

  /// Totals for reports and tests.
  struct Counters {
    Bytes bytes_read = 0;   ///< from files by positioned reads of `fetch`
    Bytes images_kept = 0;  ///< host images now in memory
    Bytes fetched = 0;      ///< image bytes handed out
  };
  Counters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
