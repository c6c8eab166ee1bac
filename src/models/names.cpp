#include "models/names.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "nn/weight_shape.h"

namespace sluice {
namespace {

constexpr std::int64_t kWidest = std::int64_t{1} << 24;

}  // namespace

Names::Names(const TensorFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {
  for (const auto& tensor : file.tensors) {
    if (std::string_view name = tensor.name; name.starts_with(prefix_)) sorted_.push_back(name.substr(prefix_.size()));
  }
  std::sort(sorted_.begin(), sorted_.end());
}

const TensorInfo* Names::find(std::string_view name) const { return file_.find(fmt::format("{}{}", prefix_, name)); }

bool Names::any(std::string_view start) const {
  const auto at = std::lower_bound(sorted_.begin(), sorted_.end(), start);
  return at != sorted_.end() && at->starts_with(start);
}

int Names::count(std::string_view start) const {
  int count = 0;
  for (auto at = std::lower_bound(sorted_.begin(), sorted_.end(), start); at != sorted_.end() && at->starts_with(start); ++at) {
    const std::string_view rest = at->substr(start.size());
    int n = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), n);
    if (error != std::errc() || end == rest.data() + rest.size() || *end != '.') continue;
    // A number beyond the number of tensors cannot be the last of a gapless list.
    if (n >= 0 && static_cast<std::size_t>(n) < sorted_.size()) count = std::max(count, n + 1);
  }
  return count;
}

Result<std::int64_t> Names::dimension(std::initializer_list<std::string_view> names, std::size_t axis) const {
  std::string tried;
  for (const auto name : names) {
    tried += fmt::format("{}{}{}", tried.empty() ? "" : " or ", prefix_, name);
    const TensorInfo* info = find(name);
    if (!info) continue;
    // The bound keeps products of a few dimensions far from overflow, whatever a file with empty tensors claims.
    if (axis >= info->shape.size() || info->elements() == 0 || info->shape[axis] > kWidest) {
      return fail(Code::corrupt, fmt::format("{}{} has shape {}: dimension {} is needed to know the model's size", prefix_,
                                             name, shape_text(info->shape), axis));
    }
    return info->shape[axis];
  }
  for (const auto name : names) {
    if (const auto& unknown = file_.unknown;
        std::find(unknown.begin(), unknown.end(), fmt::format("{}{}", prefix_, name)) != unknown.end()) {
      return fail(Code::unsupported, fmt::format("{}{} has a dtype this build cannot read", prefix_, name));
    }
  }
  return fail(Code::not_found, fmt::format("no tensor {}: the file is incomplete or of another architecture", tried));
}

}  // namespace sluice
