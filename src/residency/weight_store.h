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

namespace sluice {

/// Where a weight's bytes come from: a tensor of a file (or rows of it), and the type they have on a device. Copies of a weight can
/// always be given up, because this lives as long as its registration.
struct WeightSource {
  std::shared_ptr<const TensorFile> file;
  std::size_t tensor = 0;        ///< index into file->tensors
  std::int64_t first_row = 0;    ///< of the tensor seen as rows of shape[0] elements; for parts of fused tensors
  std::int64_t rows = -1;        ///< -1: all
};

/// One component (denoiser, text encoder, …) to be registered: its model's declarations with a source for each weight.
struct ComponentSpec {
  std::string name;
  const Model* model = nullptr;                       ///< outlives the registration
  std::vector<std::vector<WeightSource>> sources;     ///< [block][weight], parallel to model->blocks[].weights
};

using ComponentId = std::uint32_t;
struct BlockId {
  ComponentId component = 0;
  std::uint32_t block = 0;
  bool operator==(const BlockId&) const = default;
};

/// A block's device image: its tensors one after another at alloc-size-rounded offsets, padding zero. The host copy is byte for byte this.
struct BlockLayout {
  struct Tensor {
    ggml_type type = GGML_TYPE_F32;
    std::vector<std::int64_t> shape;
    Bytes offset = 0, size = 0;   ///< size without padding
    bool identity = false;        ///< the file's bytes are the image's bytes
  };
  std::vector<Tensor> tensors;    ///< parallel to Block::weights
  Bytes size = 0;                 ///< multiple of the device's alignment; 0 for a block without weights
};

/// How host copies are kept between uses.
enum class HostTier {
  disk,    ///< nothing is kept: each use reads the file (positioned reads, dropped from the page cache)
  mapped,  ///< the file is mapped; images are put together from the mapping at each use
  read,    ///< images are read once and kept in pageable or pinned memory, as the host budget allows
};

/// Which device type a weight gets: the file's where the role allows, else the nearest wider one. Pure.
/// f16/bf16/f32/quantised matrices stay; fp8 and f64 become f16 and f32; vectors and dense weights f32; kernels f16 or f32.
ggml_type device_type_for(const TensorInfo& info, WeightRole role);

/// Every weight of every component: where its bytes come from and where copies of them live.
/// Threads: registration from one thread; `fetch` from the link thread beside it for other components.
class WeightStore {
 public:
  struct Options {
    HostTier tier = HostTier::mapped;
    std::optional<Bytes> host_budget;  ///< for kept images and staging; none: unlimited
    LogSink log;
  };
  WeightStore(Device& device, Options options);
  ~WeightStore();

  /// Registers all or nothing. Shapes and types are validated before anything large is allocated: one error with component, count
  /// and the first five tensors (got, expected). Errors: not_found, invalid_argument, unsupported, over_budget (host), io.
  Result<ComponentId> add(ComponentSpec spec);
  /// Forgets a component and its copies. Errors: invalid_argument while any of its blocks is held.
  Status remove(ComponentId component);

  const BlockLayout& layout(BlockId block) const;
  const Model& model(ComponentId component) const;
  std::size_t components() const;
  /// Sum of layout sizes.
  Bytes weight_bytes(ComponentId component) const;

  /// The block's image in host memory. With HostTier::read it is the kept copy (made at first use, each file byte read once);
  /// otherwise `staging` (≥ layout size) is filled and returned. Thread safe for distinct blocks. Errors: io, corrupt, over_budget.
  Result<std::span<const std::byte>> fetch(BlockId block, std::span<std::byte> staging, const CancelToken& cancel);
  /// Whether `fetch` needs staging memory for this block.
  bool needs_staging(BlockId block) const;

  /// In-place use: on a host-memory device, with HostTier::mapped, a weight of identity recipe at an aligned file offset can be bound
  /// to the mapping itself. Binds `tensor` and returns true, or returns false (then the image is used).
  Result<bool> bind_mapped(BlockId block, std::size_t weight, ggml_tensor* tensor);
  /// Bytes of the block's image that bind_mapped cannot serve (0: nothing to copy). Equal to layout().size where mapping is no option.
  bool mappable(BlockId block) const;

  /// Where a block lives on the device, if it does. Set when its copy into a resident place is complete.
  std::optional<Address> resident(BlockId block) const;
  void set_resident(BlockId block, Address address);
  /// Gives up the device copy (its backing stays). No-op when there is none.
  void give_up(BlockId block);
  /// Blocks whose resident places overlap [from, to).
  std::vector<BlockId> residents_in(Address from, Address to) const;

  /// Gathers rows of a 2-D table (token embeddings) on the host: out[i] = table[rows[i]], widened to f32, shape [width, rows.size()].
  /// Positioned reads, nothing kept. Errors: invalid_argument (row out of range), io.
  static Status gather_rows(const WeightSource& table, std::span<const std::int32_t> rows, std::span<float> out);

  /// Totals for reports and tests.
  struct Counters {
    Bytes bytes_read = 0;      ///< from files by positioned reads
    Bytes images_kept = 0;     ///< host images now in memory
    Bytes fetched = 0;         ///< image bytes handed out
  };
  Counters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
