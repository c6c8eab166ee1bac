#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "residency/weight_recipe.h"

namespace sluice {

/// [block][weight]
using Recipes = std::vector<std::vector<WeightRecipe>>;

/// Every weight's recipe. Errors: one for all that do not fit, with component, files, count and the first five (got, expected);
/// invalid_argument where sources and model are not parallel. Pure.
Result<Recipes> resolve_component(const std::string& name, const Model& model,
                                  const std::vector<std::vector<WeightSource>>& sources);

/// Bytes in the files; tied weights (same bytes, same device type) count once.
Bytes bytes_in_files(const Recipes& recipes);

/// A weight of a component: block, index in it.
using WeightPosition = std::pair<std::uint32_t, std::uint32_t>;
/// For each weight that shares its bytes of the file with others: those others, in order. Empty for most components.
std::map<WeightPosition, std::vector<WeightPosition>> find_ties(const Recipes& recipes);

}  // namespace sluice
