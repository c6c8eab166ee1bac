#include "text/emphasis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

double sum(std::span<const float> values) {
  double total = 0;
  for (const float v : values) total += v;
  return total;
}

}  // namespace

std::string_view emphasis_name(Emphasis mode) { return mode == Emphasis::mean ? "mean" : "none"; }

Result<Emphasis> parse_emphasis(std::string_view name) {
  for (const Emphasis mode : {Emphasis::mean, Emphasis::none}) {
    if (name == emphasis_name(mode)) return mode;
  }
  return fail(Code::invalid_argument, fmt::format("unknown emphasis \"{:.40}\": use one of mean, none", name));
}

Status apply_emphasis(std::span<float> states, std::span<const float> weights, Emphasis mode) {
  if (weights.empty() ? !states.empty() : states.size() % weights.size() != 0) {
    return fail(Code::invalid_argument,
                fmt::format("{} text states do not divide into {} tokens", states.size(), weights.size()));
  }
  if (std::all_of(weights.begin(), weights.end(), [](float w) { return w == 1.0f; })) return {};
  const std::size_t hidden = states.size() / weights.size();
  const double before = sum(states);
  for (std::size_t t = 0; t < weights.size(); ++t) {
    for (float& z : states.subspan(t * hidden, hidden)) z *= weights[t];
  }
  if (mode == Emphasis::none) return {};
  const auto restore = static_cast<float>(before / sum(states));
  if (!std::isfinite(restore)) return {};
  for (float& z : states) z *= restore;
  return {};
}

}  // namespace sluice
