#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "device/device.h"
#include "io/tensor_file.h"
#include "nn/model.h"
#include "residency/block_id.h"
#include "residency/block_layout.h"
#include "residency/host_pool.h"
#include "residency/weight_recipe.h"

namespace sluice {

/// One component (denoiser, text encoder, …) to be registered: its model's declarations with a source for each weight.
struct ComponentSpec {
  std::string name;
  const Model* model = nullptr;                    ///< outlives the registration
  std::vector<std::vector<WeightSource>> sources;  ///< [block][weight], parallel to model->blocks[].weights
  /// Which of the store's devices its blocks may be on, in the order in which they are dealt out; all are on the first until
  /// `assign` says otherwise.
  std::vector<std::size_t> devices = {0};
  /// The rows of its large matrices lie spread over `devices`, the first of which runs all its blocks. They are no part of the
  /// blocks' images, and stay where they are from `load_split` on.
  bool split_rows = false;
  std::int64_t split_from = 256;  ///< which matrices are large: those with so many rows and columns; smaller ones cost more
                                  ///< in crossing than they spare
};

/// How host copies are kept between uses.
enum class HostTier {
  disk,    ///< nothing is kept: each use reads the file (positioned reads, dropped from the page cache)
  mapped,  ///< the file is mapped; images are put together from the mapping at each use
  read,    ///< images are read once and kept in pageable or pinned memory, as the host budget allows
};

/// What forbids that a block goes to another device, and that its kept image is given back.
enum class BlockFlag {
  merged,     ///< LoRA factors were added to its device copy, which its file cannot give back: that does not leave either
  row_split,  ///< rows of its weights lie spread over several devices: nothing is merged into it; its image comes and goes
};

/// Bytes of a load that are done, of all that it brings.
using LoadProgress = std::function<void(Bytes done, Bytes total)>;

/// Every weight of every component: where its bytes come from and where copies of them live on the host.
/// Threads: registration and `place` from one thread; `fetch` from the link threads beside it for other components; all else
/// from any thread. A ComponentId or BlockId that `add` did not return, or whose component was removed, is a bug.
class WeightStore {
 public:
  struct Options {
    HostTier tier = HostTier::mapped;
    std::optional<Bytes> host_budget;  ///< for kept images and staging, pageable and pinned together; none: unlimited
    LogSink log;
    std::optional<Bytes> pinned_budget = std::nullopt;  ///< for the pinned part; none: half of the host's memory
  };
  /// `devices`: at least one; they outlive the store.
  WeightStore(std::vector<Device*> devices, Options options);
  WeightStore(Device& device, Options options);
  ~WeightStore();

  /// Files under names, for messages and so that components can be told by where they come from. A component may also use files
  /// that are no sources; they go with it. Errors: invalid_argument (the name is taken, or the file has another one), those of
  /// open_tensor_file.
  Status add_source(const std::string& name, std::shared_ptr<const TensorFile> file);
  Result<std::shared_ptr<const TensorFile>> add_source(const std::string& name, const std::string& path,
                                                       const FileSource& files);
  /// Errors: invalid_argument while components use it (named), not_found.
  Status remove_source(const std::string& name);
  struct Source {
    std::string name;  ///< empty: no registered source
    std::shared_ptr<const TensorFile> file;
  };
  /// The files a component's weights come from, in the order of their first use. Their metadata are the component's.
  std::vector<Source> sources_of(ComponentId component) const;

  /// Registers all or nothing. Shapes and types are validated before anything large is allocated: one error with component,
  /// files, count and the first five tensors (got, expected). Maps the files (HostTier::mapped) or books host memory for the
  /// images to be kept (HostTier::read), taking back bookings of components that nobody holds where the largest image that is
  /// not kept would find no staging. Reads nothing. Errors: not_found, invalid_argument, unsupported, over_budget (host), io.
  Result<ComponentId> add(ComponentSpec spec);
  /// Forgets a component and its copies. Errors: invalid_argument while it is held or one of its blocks is being fetched.
  Status remove(ComponentId component);
  /// Whoever has plans or tensors that rest on a component holds it: until the last Hold is gone, `remove` and `place` are
  /// refused, its kept images stay, and what `needs_staging` says of its blocks stays so. The first Hold books what of the
  /// component's images is not booked yet, if need be in place of images of components that nobody holds, the least recently
  /// used first (one warning for each component that gets less than all).
  using Hold = std::shared_ptr<const void>;
  Hold hold(ComponentId component) const;
  /// Whether anybody holds the component or is fetching one of its blocks.
  bool in_use(ComponentId component) const;
  /// As long as it lives, the block does not leave the device once it is there, and its component is held.
  Hold hold(BlockId block);
  /// By itself: a held component does not make its blocks held.
  bool held(BlockId block) const;
  /// A flagged block is not demoted, and its component stays on its device.
  void set_flag(BlockId block, BlockFlag flag, bool on = true);
  bool has_flag(BlockId block, BlockFlag flag) const;

  /// Whether `component` is registered (and not removed again).
  bool has(ComponentId component) const;
  /// The device of its first block.
  std::size_t device_of(ComponentId component) const;
  std::size_t device_of(BlockId block) const;
  /// The devices its blocks may be on.
  std::vector<std::size_t> devices_of(ComponentId component) const;
  /// Puts a component on another device, and on no other from now on, loaded or not, all or nothing. Layouts and in-place use
  /// are decided anew; kept images stay where the layout is the same and are made anew at next use where it is not. References
  /// that `layout` gave end. Copies on the old device are the caller's to forget. Errors: invalid_argument (held, being
  /// fetched, a flagged block, spread rows, no such device).
  Status place(ComponentId component, std::size_t device);
  /// Deals a component's blocks out to devices of `devices_of`, one for each block. Otherwise as `place`; a flagged block only
  /// has to stay where it is.
  Status assign(ComponentId component, const std::vector<std::size_t>& device_of);

  // Rows that lie spread over several devices (ComponentSpec::split_rows).

  /// Whether the component is registered so.
  bool splits_rows(ComponentId component) const;
  /// Sets who gets which share of the rows, parallel to `devices_of`, and lays the blocks out anew: a device that would get no
  /// row of a weight cannot compute with it. Whether anything changed; nothing does while the weights are loaded or the
  /// component is in use. References that `layout` gave end then, and copies of its blocks are the caller's to forget. Errors:
  /// those of Device::allocate_split.
  Result<bool> share_rows(ComponentId component, std::vector<float> shares);
  /// What these weights take of each of the store's devices, loaded or not: an upper bound (device/row_split.h).
  std::vector<Bytes> split_bytes(ComponentId component) const;
  /// Loads them, weight by weight, into memory leased on each device's ledger, and flags their blocks. The caller has the
  /// devices, and made room. All or nothing. Cost: their bytes once from the file and over the link. Errors: over_budget (also
  /// the host's, for staging), device_oom, device_failed, io, corrupt, cancelled.
  Status load_split(ComponentId component, const CancelToken& cancel);
  /// Takes that back. Tensors that took a place over mean nothing then.
  void unload_split(ComponentId component);
  bool split_loaded(ComponentId component) const;
  /// A loaded weight that is apart from its block's image; nullptr: it is not. Valid as long as `split_generation` stays.
  const ggml_tensor* split_tensor(BlockId block, std::size_t weight) const;
  int split_generation(ComponentId component) const;
  /// Bytes that such weights of all components have on a device now. Cheap.
  Bytes split_on(std::size_t device) const;

  /// Makes all kept images of a component (HostTier::read), reading each byte of its files at most once (but where blocks want
  /// the same bytes in several types and none as they are), or asks the system to read its mapped files ahead
  /// (HostTier::mapped; does not wait). HostTier::disk: nothing. `progress` may be empty. All or nothing: after an error what
  /// this call made or booked is gone. Errors: invalid_argument (in use), io, corrupt, device_oom, cancelled.
  Status load(ComponentId component, const CancelToken& cancel, const LoadProgress& progress);

  /// Whether a copy besides the file's and the device's is at hand: a mapping, or a kept image that has been made.
  bool has_host_copy(BlockId block) const;
  /// Gives a block's kept image and its booking back. Bytes given back: 0 where there is neither, the component is held or
  /// being fetched, or the block is flagged. The next fetch or hold finds it as if it had never been read.
  Bytes demote(BlockId block);
  /// The same for all blocks.
  Bytes demote_idle();
  /// Tells the system that a block's mapped pages are not needed for now. No-op where nothing is mapped.
  void drop_mapped(BlockId block);

  /// Valid until `remove`, `place` or `assign`.
  const BlockLayout& layout(BlockId block) const;
  /// What `layout` would be on another device.
  BlockLayout layout_on(BlockId block, std::size_t device) const;
  const Model& model(ComponentId component) const;
  /// How many are registered now.
  std::size_t components() const;
  /// Sum of layout sizes, and of weights apart from them.
  Bytes weight_bytes(ComponentId component) const;
  /// Bytes of the component's weights in their files; tied ones (same bytes, same device type) count once.
  Bytes file_bytes(ComponentId component) const;

  /// Error (io: "load it again") if a file of a registered component changed since it was opened. Asked before each stage,
  /// since a mapping does not survive truncation. Cost: two system calls per file.
  Status check_sources() const;

  /// The block's image in host memory. With HostTier::read it is the kept copy (made at first use, each file byte read once),
  /// there until nobody holds the component; otherwise `staging` (≥ layout size) is filled and returned. Of a component that
  /// nobody holds, a block is kept where there is room without taking from others. Thread safe for distinct blocks; `cancel` is
  /// asked between pieces. An error leaves the block as it was before; the next call starts anew. Errors: io, corrupt,
  /// device_oom (host memory for a kept image, and no staging to do without), invalid_argument (staging too small), cancelled.
  Result<std::span<const std::byte>> fetch(BlockId block, std::span<std::byte> staging, const CancelToken& cancel);
  /// Whether `fetch` needs staging memory for this block. Settled while the component is held.
  bool needs_staging(BlockId block) const;

  /// In-place use: binds `tensor` (no memory yet, the layout's type and shape) to the file's mapping and returns true, or
  /// returns false where `mappable` is false (then the image is used). Nothing is booked: that is DeviceMemory's. The caller
  /// holds the component while the tensor lives. Errors: invalid_argument (another type or shape), device_failed.
  Result<bool> bind_mapped(BlockId block, std::size_t weight, ggml_tensor* tensor);
  /// Whether every weight of the block can be used in place: a device whose memory is the host's and that maps it (the CPU,
  /// integrated ones whose driver can), HostTier::mapped, identity recipes at offsets aligned for the device. Such a block
  /// needs no copy and no arena bytes. False for a block without weights.
  bool mappable(BlockId block) const;

  /// Gathers rows of a 2-D table (token embeddings) on the host: out[i] = table[rows[i]], widened to f32, shape [width,
  /// rows.size()]. Positioned reads of just those rows, each once however often it is asked for; nothing is kept. Errors:
  /// invalid_argument (row out of range, size of `out`), not_found, unsupported, io.
  static Status gather_rows(const WeightSource& table, std::span<const std::int32_t> rows, std::span<float> out);

  /// The books of host memory, pageable and pinned together: kept images, the conversion buffer, and what callers reserve for
  /// staging. Limit: host_budget.
  Ledger& host_ledger();
  /// Of that, what is pinned. Limit: pinned_budget.
  Ledger& pinned_ledger();
  /// Memory for `size` bytes that the caller has leased from host_ledger: pinned where it can be and pinned_ledger has room.
  /// Errors: device_oom.
  Result<HostPiece> allocate_host(std::size_t device, Use use, Bytes size);

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
