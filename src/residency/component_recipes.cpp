#include "residency/component_recipes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace sluice {
namespace {

std::string path_of(const WeightSource& source) {
  return source.file && source.file->file ? source.file->file->path() : std::string("no file");
}

}  // namespace

Result<Recipes> resolve_component(const std::string& name, const Model& model,
                                  const std::vector<std::vector<WeightSource>>& sources) {
  constexpr std::size_t kNamed = 5;
  const auto& blocks = model.blocks;
  if (sources.size() != blocks.size())
    return fail(Code::invalid_argument,
                fmt::format("{}: sources for {} blocks, the model has {}", name, sources.size(), blocks.size()));
  Recipes recipes(blocks.size());
  std::vector<std::pair<std::string, std::string>> problems;  // file, what
  std::set<std::string> paths;
  std::size_t count = 0;
  Code code{};
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (sources[b].size() != blocks[b].weights.size())
      return fail(Code::invalid_argument, fmt::format("{}: block '{}' has {} weights and sources for {}", name, blocks[b].name,
                                                      blocks[b].weights.size(), sources[b].size()));
    for (std::size_t w = 0; w < blocks[b].weights.size(); ++w) {
      auto recipe = resolve_weight(blocks[b].weights[w], sources[b][w]);
      if (recipe) {
        recipes[b].push_back(*std::move(recipe));
        continue;
      }
      if (count++ == 0) code = recipe.error().code;
      paths.insert(path_of(sources[b][w]));
      if (problems.size() < kNamed) problems.emplace_back(path_of(sources[b][w]), recipe.error().message);
    }
  }
  if (count == 0) return recipes;
  const bool one_file = paths.size() == 1;
  std::vector<std::string> named;
  for (const auto& [path, what] : problems) named.push_back(one_file ? what : fmt::format("{}: {}", path, what));
  return fail(code, fmt::format("{}: {} {} not fit {}: {}{}", name, count, count == 1 ? "weight does" : "weights do",
                                one_file ? *paths.begin() : "their files", fmt::join(named, "; "),
                                count > named.size() ? fmt::format("; and {} more", count - named.size()) : ""));
}

Bytes bytes_in_files(const Recipes& recipes) {
  std::set<std::tuple<const File*, Bytes, Bytes, ggml_type>> seen;
  Bytes sum = 0;
  for (const auto& block : recipes)
    for (const auto& r : block)
      if (seen.insert({r.file->file.get(), r.begin, r.bytes, r.type}).second) sum += r.bytes;
  return sum;
}

std::map<WeightPosition, std::vector<WeightPosition>> find_ties(const Recipes& recipes) {
  std::map<std::tuple<const File*, Bytes, Bytes>, std::vector<WeightPosition>> by_bytes;
  for (std::uint32_t b = 0; b < recipes.size(); ++b)
    for (std::uint32_t w = 0; w < recipes[b].size(); ++w) {
      const WeightRecipe& r = recipes[b][w];
      by_bytes[{r.file->file.get(), r.begin, r.bytes}].emplace_back(b, w);
    }
  std::map<WeightPosition, std::vector<WeightPosition>> ties;
  for (const auto& [bytes, positions] : by_bytes)
    for (const auto& one : positions)
      for (const auto& other : positions)
        if (one != other) ties[one].push_back(other);
  return ties;
}

}  // namespace sluice
