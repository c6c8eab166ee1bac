#pragma once

#include <string>
#include <utility>
#include <vector>

#include "nn/graph_builder.h"
#include "nn/model.h"

namespace sluice {

/// Collects what a block declares, then appends it to its model. Modules (Linear, Conv2d, ...) add their weights and reach to
/// it and are captured by value in `forward`.
///
///     BlockDef def(model, "proj");
///     def.reads({x});
///     const auto linear = Linear::declare(def, "proj", 320, 320);
///     const Value y = def.writes();
///     def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {linear(g, in[0])}; });
class BlockDef {
 public:
  using Tensors = std::vector<ggml_tensor*>;
  using Forward = std::function<Tensors(GraphBuilder&, const Tensors&)>;

  BlockDef(Model& model, std::string name) : model_(model) { block_.name = std::move(name); }

  WeightRef weight(std::string name, std::vector<std::int64_t> shape, WeightRole role) {
    block_.weights.push_back({std::move(name), std::move(shape), role});
    return WeightRef{static_cast<std::uint32_t>(block_.weights.size() - 1)};
  }
  void reach(Operator op) { block_.operators.push_back(op); }
  void reads(std::vector<Value> values) { block_.inputs = std::move(values); }
  /// A new value that this block produces; `forward` returns tensors in the order of these calls.
  Value writes() {
    block_.outputs.push_back(model_.new_value());
    return block_.outputs.back();
  }
  void finish(Forward forward) {
    block_.forward = std::move(forward);
    model_.blocks.push_back(std::move(block_));
  }

 private:
  Model& model_;
  Block block_;
};

using Tensors = BlockDef::Tensors;

}  // namespace sluice
