#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "ggml.h"

namespace sluice {

/// How ggml spreads a weight's rows over the cards of one backend, and what that takes of each. Pure.
///
/// A card gets the rows between its share's ends, each end rounded down to a multiple of a tile of the matrix product; the last
/// card gets what is left. Source: ggml-cuda, get_row_split, get_row_rounding and the split buffer's init_tensor.

/// The largest tile any card of ggml has (mmq_y of ggml-cuda: 64 or 128, by the card).
inline constexpr std::int64_t kLargestRowTile = 128;

/// Rows for each card. `shares`: one for each, in the cards' order; they need not sum to 1.
std::vector<std::int64_t> split_rows(std::int64_t rows, std::span<const float> shares, std::int64_t tile);

/// Bytes of the rows of a weight that one card holds: rows that are no multiple of 512 elements are padded after the last one.
Bytes split_size(ggml_type type, std::int64_t width, std::int64_t rows);

/// Upper bound of what the weight takes of each card: the largest split_size for all tiles (powers of two up to the largest),
/// since which of them a card has is not told.
std::vector<Bytes> split_bound(ggml_type type, std::int64_t width, std::int64_t rows, std::span<const float> shares);

/// Shares in proportion to budgets. Who is unlimited counts as much as the largest of the others; where all are, they are
/// equal.
std::vector<float> shares_by_budget(std::span<const std::optional<Bytes>> budgets);

}  // namespace sluice
