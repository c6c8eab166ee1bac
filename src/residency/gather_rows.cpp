#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/utf8.h"
#include "io/convert.h"
#include "residency/weight_store.h"

namespace sluice {
namespace {

/// Most bytes of neighbouring rows that one read brings.
constexpr Bytes kMostRead = 256 * KiB;

}  // namespace

Status WeightStore::gather_rows(const WeightSource& table, std::span<const std::int32_t> rows, std::span<float> out) {
  SLUICE_ASSIGN(const SourceRange range, source_range(table));
  const TensorInfo& info = table.file->tensors[table.tensor];
  if (!convertible(info, GGML_TYPE_F32))
    return fail(Code::unsupported, fmt::format("'{}' cannot be widened to f32", printable(info.name)));
  const auto width = static_cast<std::size_t>(range.row_elements);
  if (out.size() != rows.size() * width)
    return fail(Code::invalid_argument,
                fmt::format("{} rows of {} take {} values, not {}", rows.size(), width, rows.size() * width, out.size()));
  for (std::int32_t row : rows)
    if (row < 0 || row >= range.rows)
      return fail(Code::invalid_argument, fmt::format("row {} of '{}', which has {}", row, printable(info.name), range.rows));

  // Places by row, so that repeated and neighbouring rows come together.
  std::vector<std::size_t> order(rows.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rows[a] < rows[b]; });
  const auto values = [&](std::size_t place) { return out.subspan(place * width, width); };

  std::vector<std::byte> bytes;
  for (std::size_t n = 0; n < order.size();) {
    const std::int32_t first = rows[order[n]];
    std::size_t end = n + 1;
    std::int32_t last = first;
    while (end < order.size() && rows[order[end]] <= last + 1 &&
           static_cast<Bytes>(rows[order[end]] - first + 1) * range.row_bytes <= std::max(kMostRead, range.row_bytes))
      last = rows[order[end++]];
    bytes.resize(static_cast<Bytes>(last - first + 1) * range.row_bytes);
    SLUICE_TRY(table.file->file->read_at(range.begin + static_cast<Bytes>(first) * range.row_bytes, bytes));
    for (; n < end; ++n) {
      const std::int32_t row = rows[order[n]];
      if (n > 0 && rows[order[n - 1]] == row) {
        std::ranges::copy(values(order[n - 1]), values(order[n]).begin());
        continue;
      }
      const auto stored = std::span(bytes).subspan(static_cast<Bytes>(row - first) * range.row_bytes, range.row_bytes);
      SLUICE_TRY(convert(info, stored, range.row_elements, GGML_TYPE_F32, std::as_writable_bytes(values(order[n]))));
    }
  }
  return {};
}

}  // namespace sluice
