#include "nn/weight_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sluice {

bool same_elements(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
  std::size_t i = 0, j = 0;
  for (;;) {
    while (i < a.size() && a[i] == 1) ++i;
    while (j < b.size() && b[j] == 1) ++j;
    if (i == a.size() || j == b.size()) return i == a.size() && j == b.size();
    if (a[i++] != b[j++]) return false;
  }
}

std::string shape_text(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace sluice
