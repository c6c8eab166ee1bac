#include "models/component.h"

#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/weight_shape.h"

namespace sluice {
namespace {

std::string first_five(const std::vector<std::string>& what) {
  const auto shown = std::min<std::size_t>(what.size(), 5);
  return fmt::format("{}{}", fmt::join(what.begin(), what.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     shown < what.size() ? ", …" : "");
}

}  // namespace

Misfits find_misfits(const Model& model, const TensorFile& file, const std::string& prefix) {
  Misfits misfits;
  const std::unordered_set<std::string_view> unknown(file.unknown.begin(), file.unknown.end());
  for (const auto& block : model.blocks) {
    for (const auto& weight : block.weights) {
      const std::string name = prefix + weight.name;
      const TensorInfo* info = file.find(name);
      if (unknown.contains(name)) {
        misfits.unreadable.push_back(name);
      } else if (!info) {
        misfits.missing.push_back(fmt::format("{} {}", name, shape_text(weight.shape)));
      } else if (!same_elements(info->shape, weight.shape)) {
        misfits.wrong_shape.push_back(
            fmt::format("{}: {} instead of {}", name, shape_text(info->shape), shape_text(weight.shape)));
      }
    }
  }
  return misfits;
}

Result<Component> join(Model model, const std::shared_ptr<const TensorFile>& file, const std::string& prefix) {
  const Misfits misfits = find_misfits(model, *file, prefix);
  const std::string who = fmt::format("{}: {}", file->file ? file->file->path() : "model", model.name);
  if (!misfits.missing.empty()) {
    return fail(Code::not_found, fmt::format("{} lacks {} tensors: {} (shapes with the fastest dimension first)", who,
                                             misfits.missing.size(), first_five(misfits.missing)));
  }
  if (!misfits.unreadable.empty()) {
    return fail(Code::unsupported, fmt::format("{} has {} tensors of a dtype this build cannot read: {}", who,
                                               misfits.unreadable.size(), first_five(misfits.unreadable)));
  }
  if (!misfits.wrong_shape.empty()) {
    return fail(Code::corrupt, fmt::format("{} has {} tensors of the wrong shape: {} (fastest dimension first)", who,
                                           misfits.wrong_shape.size(), first_five(misfits.wrong_shape)));
  }
  Component component;
  for (const auto& block : model.blocks) {
    auto& origins = component.origins.emplace_back();
    for (const auto& weight : block.weights) origins.push_back({file, file->index.at(prefix + weight.name)});
  }
  component.model = std::make_shared<const Model>(std::move(model));
  return component;
}

}  // namespace sluice
