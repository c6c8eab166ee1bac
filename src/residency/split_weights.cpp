#include "residency/split_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "device/refusal.h"
#include "device/row_split.h"

namespace sluice {
namespace {

/// Columns of the product that a device is asked for: enough for the kernels that take many at once.
constexpr std::int64_t kColumns = 64;

}  // namespace

Result<SplitWeights> SplitWeights::open(std::vector<Member> members, std::int64_t least_side) {
  if (members.size() < 2) return fail(Code::invalid_argument, "rows can be spread over two devices or more, and there is one");
  SplitWeights split;
  split.least_side_ = least_side;
  std::vector<int> cards;
  bool last = false;
  const void* family = nullptr;
  for (const Member& member : members) {
    const auto offer = member.device->row_split();
    if (!offer)
      return fail(Code::unsupported,
                  fmt::format("the backend of {} does not spread rows of weights over devices", member.device->info().name));
    if (family && offer->family != family)
      return fail(Code::unsupported, fmt::format("{} and {} are not of one backend, and rows are spread within one",
                                                 members[0].device->info().name, member.device->info().name));
    family = offer->family;
    last = last || offer->last;
    cards.push_back(offer->card);
  }
  split.with_last_card_ = last;
  split.by_card_.resize(members.size());
  std::iota(split.by_card_.begin(), split.by_card_.end(), std::size_t{0});
  std::sort(split.by_card_.begin(), split.by_card_.end(), [&](auto a, auto b) { return cards[a] < cards[b]; });
  split.members_ = std::move(members);
  SLUICE_TRY(split.set_shares(std::vector<float>(split.members_.size(), 1.0f / static_cast<float>(split.members_.size()))));
  return split;
}

std::vector<RowShare> SplitWeights::row_shares() const {
  std::vector<RowShare> shares;
  for (const std::size_t m : by_card_) shares.push_back({members_[m].device, shares_[m]});
  return shares;
}

Status SplitWeights::set_shares(std::vector<float> shares) {
  shares_ = std::move(shares);
  SLUICE_ASSIGN(auto stand_in, members_[0].device->allocate_split({}, row_shares()));
  stand_in_ = std::move(stand_in);
  return {};
}

bool SplitWeights::takes(ggml_type type, std::span<const std::int64_t> shape) const {
  if (shape.size() != 2 || std::min(shape[0], shape[1]) < least_side_) return false;
  // What is left over lies on the family's last card, which is nobody's here.
  if (!with_last_card_ && shape[1] % kLargestRowTile != 0) return false;
  const ggml_context_ptr context{ggml_init({3 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true})};
  if (!context) return false;
  ggml_tensor* weight = ggml_new_tensor_2d(context.get(), type, shape[0], shape[1]);
  ggml_tensor* x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, shape[0], kColumns);
  weight->buffer = stand_in_.get();
  return members_[0].device->supports(ggml_mul_mat(context.get(), weight, x));
}

std::vector<Bytes> SplitWeights::bytes(std::span<const Weight> weights) const {
  std::vector<float> shares;
  for (const std::size_t m : by_card_) shares.push_back(shares_[m]);
  std::vector<Bytes> sums(members_.size(), 0);
  for (const Weight& weight : weights) {
    const auto bound = split_bound(weight.type, weight.width, weight.rows, shares);
    for (std::size_t i = 0; i < bound.size(); ++i) sums[by_card_[i]] += bound[i];
  }
  return sums;
}

Status SplitWeights::load(std::span<const Weight> weights, const Fetch& fetch, const CancelToken& cancel) {
  if (loaded_) return {};
  if (auto done = take_and_fill(weights, fetch, cancel); !done) {
    unload();
    return done;
  }
  loaded_ = true;
  ++generation_;
  return {};
}

Status SplitWeights::take_and_fill(std::span<const Weight> weights, const Fetch& fetch, const CancelToken& cancel) {
  const auto sums = bytes(weights);
  for (std::size_t m = 0; m < members_.size(); ++m) {
    if (sums[m] == 0) continue;
    SLUICE_ASSIGN(auto lease, members_[m].device->ledger().reserve(Use::weights, sums[m]));
    leases_.push_back(std::move(lease));
  }
  Device& computing = *members_[0].device;
  const auto shares = row_shares();
  for (std::size_t from = 0; from < weights.size();) {
    std::size_t to = from;
    while (to < weights.size() && weights[to].block == weights[from].block) ++to;
    std::vector<ggml_tensor*> tensors;
    // A refusal may come after some tensors have their place: whoever tries again starts with new ones.
    const auto allocate = [&]() -> Status {
      ggml_context_ptr context{ggml_init({(to - from) * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true})};
      if (!context) return fail(Code::device_oom, "no host memory for a block's tensors");
      tensors.clear();
      for (std::size_t i = from; i < to; ++i)
        tensors.push_back(ggml_new_tensor_2d(context.get(), weights[i].type, weights[i].width, weights[i].rows));
      SLUICE_ASSIGN(auto buffer, computing.allocate_split(tensors, shares));
      ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
      contexts_.push_back(std::move(context));
      buffers_.push_back(std::move(buffer));
      return {};
    };
    SLUICE_TRY(outlast_refusal(computing, allocate));
    for (std::size_t i = from; i < to; ++i) {
      if (cancel.cancelled()) return fail(Code::cancelled, "cancelled while loading weights");
      ggml_tensor* tensor = tensors[i - from];
      SLUICE_ASSIGN(const auto data, fetch(weights[i]));
      SLUICE_TRY(computing.set(tensor, 0, data, 0, cancel));
      tensors_[{weights[i].block, weights[i].weight}] = tensor;
    }
    from = to;
  }
  return {};
}

void SplitWeights::unload() {
  if (loaded_) ++generation_;
  loaded_ = false;
  tensors_.clear();
  buffers_.clear();
  contexts_.clear();
  leases_.clear();
}

const ggml_tensor* SplitWeights::find(std::uint32_t block, std::uint32_t weight) const {
  const auto found = tensors_.find({block, weight});
  return found == tensors_.end() ? nullptr : found->second;
}

}  // namespace sluice
