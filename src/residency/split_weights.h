#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/cancel.h"
#include "device/device.h"

namespace sluice {

/// The weights of one component whose rows lie spread over several devices: who takes part with what share, which weights can
/// be among them, and, once loaded, their memory with its leases. Not thread safe.
class SplitWeights {
 public:
  struct Weight {
    std::uint32_t block = 0, weight = 0;
    ggml_type type = GGML_TYPE_F32;
    std::int64_t width = 0, rows = 0;
  };
  /// A device by its place among those that take part, the first of which computes.
  struct Member {
    Device* device = nullptr;
    std::size_t index = 0;  ///< of the device in the store
  };

  /// With equal shares. Errors: invalid_argument (fewer than two members), unsupported (a device that does not offer it, or two
  /// of different families; named).
  static Result<SplitWeights> open(std::vector<Member> members, std::int64_t least_side);

  /// Parallel to the members. Nothing is loaded. Errors: those of Device::allocate_split.
  Status set_shares(std::vector<float> shares);
  const std::vector<float>& shares() const { return shares_; }
  /// Whether rows of such a weight can be spread: both sides large enough, and the first device multiplies with it then.
  bool takes(ggml_type type, std::span<const std::int64_t> shape) const;
  /// An empty buffer of the kind the weights will lie in, to ask Device::supports with.
  const std::shared_ptr<ggml_backend_buffer>& stand_in() const { return stand_in_; }
  /// Upper bound of what the weights take of each member (device/row_split.h).
  std::vector<Bytes> bytes(std::span<const Weight> weights) const;

  /// Gives a weight's bytes, as they lie on a device; valid until the next call.
  using Fetch = std::function<Result<std::span<const std::byte>>(const Weight&)>;
  /// Leases and allocates memory for all, a buffer for each block, and fills it. All or nothing. `weights`: by block. Errors:
  /// over_budget, device_oom, device_failed, cancelled, those of `fetch`.
  Status load(std::span<const Weight> weights, const Fetch& fetch, const CancelToken& cancel);
  void unload();
  bool loaded() const { return loaded_; }
  /// A loaded weight. Others take its place over by buffer, data and extra.
  const ggml_tensor* find(std::uint32_t block, std::uint32_t weight) const;
  /// Counts loads and unloads: whoever took a place over has to look again when it has changed.
  int generation() const { return generation_; }
  const std::vector<Member>& members() const { return members_; }

 private:
  SplitWeights() = default;
  std::vector<RowShare> row_shares() const;
  Status take_and_fill(std::span<const Weight> weights, const Fetch& fetch, const CancelToken& cancel);

  std::vector<Member> members_;
  std::vector<std::size_t> by_card_;  // places in members_, in the order of their cards
  bool with_last_card_ = true;
  std::int64_t least_side_ = 0;
  std::vector<float> shares_;
  std::shared_ptr<ggml_backend_buffer> stand_in_;
  bool loaded_ = false;
  int generation_ = 0;
  std::vector<Lease> leases_;  // before the memory they stand for, so given back after it
  std::vector<ggml_context_ptr> contexts_;
  std::vector<DeviceBuffer> buffers_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, ggml_tensor*> tensors_;
};

}  // namespace sluice
