#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/names.h"
#include "nn/model.h"

namespace sluice {

/// Where a weight lies: tensor `tensor` of `file`. Its shape holds the declared elements in the declared order
/// (nn/weight_shape.h).
struct WeightOrigin {
  std::shared_ptr<const TensorFile> file;
  std::size_t tensor = 0;  ///< index into file->tensors
  const TensorInfo& info() const { return file->tensors[tensor]; }
};

/// A model joined with the tensors it takes its weights from. The model does not move while anyone holds it.
struct Component {
  std::shared_ptr<const Model> model;
  std::vector<std::vector<WeightOrigin>> origins;  ///< [block][weight], parallel to model->blocks[].weights
};

/// What keeps a model from being joined with a file.
struct Misfits {
  std::vector<std::string> missing;      ///< "name [shape]"
  std::vector<std::string> unreadable;   ///< there, but of a dtype this build does not know
  std::vector<std::string> wrong_shape;  ///< "name: [got] instead of [expected]"
  bool empty() const { return missing.empty() && unreadable.empty() && wrong_shape.empty(); }
};

/// Every weight of `model` that `file` does not hold under `prefix` with the declared elements. No data is read.
Misfits find_misfits(const Model& model, const TensorFile& file, const std::string& prefix);

/// Joins. Errors: one for all misfits: not_found (missing), unsupported (unreadable), corrupt (shapes), with the component's
/// name, the count and the first five.
Result<Component> join(Model model, const std::shared_ptr<const TensorFile>& file, const std::string& prefix);

}  // namespace sluice
