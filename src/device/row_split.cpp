#include "device/row_split.h"

#include <algorithm>

#include "device/device.h"

namespace sluice {
namespace {

/// ggml pads rows so that kernels may read whole tiles of columns (MATRIX_ROW_PADDING of ggml-cuda).
constexpr std::int64_t kRowPadding = 512;
/// Each card's part of a weight is an allocation of its own, at a multiple of this.
constexpr Bytes kGranularity = 512;

}  // namespace

Result<DeviceBuffer> Device::allocate_split(std::span<ggml_tensor* const>, std::span<const RowShare>) {
  return fail(Code::unsupported, info().name + " cannot share the rows of weights with other devices");
}

std::vector<std::int64_t> split_rows(std::int64_t rows, std::span<const float> shares, std::int64_t tile) {
  // In floats and in this order, as ggml does it: an end may fall on either side of a tile otherwise.
  float sum = 0;
  std::vector<float> starts;
  for (const float share : shares) {
    starts.push_back(sum);
    sum += share;
  }
  std::vector<std::int64_t> counts;
  std::int64_t low = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    std::int64_t high = rows;
    if (i + 1 < shares.size()) {
      high = static_cast<std::int64_t>(static_cast<float>(rows) * (starts[i + 1] / sum));
      high -= high % tile;
    }
    counts.push_back(high - low);
    low = high;
  }
  return counts;
}

Bytes split_size(ggml_type type, std::int64_t width, std::int64_t rows) {
  if (rows <= 0) return 0;
  Bytes size = static_cast<Bytes>(rows) * ggml_row_size(type, width);
  if (const auto over = width % kRowPadding; over != 0) size += ggml_row_size(type, kRowPadding - over);
  return align_up(size, kGranularity);
}

std::vector<Bytes> split_bound(ggml_type type, std::int64_t width, std::int64_t rows, std::span<const float> shares) {
  std::vector<Bytes> most(shares.size(), 0);
  for (std::int64_t tile = 1; tile <= kLargestRowTile; tile *= 2) {
    const auto counts = split_rows(rows, shares, tile);
    for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], split_size(type, width, counts[i]));
  }
  return most;
}

std::vector<float> shares_by_budget(std::span<const std::optional<Bytes>> budgets) {
  Bytes largest = 0;
  for (const auto& budget : budgets) largest = std::max(largest, budget.value_or(0));
  if (largest == 0) largest = 1;
  double sum = 0;
  for (const auto& budget : budgets) sum += static_cast<double>(budget.value_or(largest));
  std::vector<float> shares;
  for (const auto& budget : budgets) shares.push_back(static_cast<float>(static_cast<double>(budget.value_or(largest)) / sum));
  return shares;
}

}  // namespace sluice
