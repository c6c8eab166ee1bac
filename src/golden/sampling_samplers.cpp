#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "golden/array.h"
#include "golden/dotted_name.h"
#include "golden/runner.h"
#include "sampling/sampler.h"

namespace sluice::golden {
namespace {

/// The oracle's toy denoisers (its README gives the formulas).
double denoise(bool flow, double x, double s) {
  if (flow) return (1 - s) * 0.64 * x / ((1 - s) * (1 - s) * 0.64 + s * s) + 0.2 * s * std::tanh(x);
  return 0.64 * x / (0.64 + s * s) + 0.3 * s / (1 + s) * std::tanh(x / (1 + s));
}

/// "euler_a_eta0.5" is euler_a with eta 0.5.
Result<SamplerOptions> sampler_options(std::string name) {
  std::optional<double> eta;
  if (const auto at = name.find("_eta"); at != std::string::npos) {
    double value = 0;
    const char* end = name.data() + name.size();
    if (std::from_chars(name.data() + at + 4, end, value).ptr != end)
      return fail(Code::invalid_argument, "eta of " + name + " is no number");
    eta = value;
    name.resize(at);
  }
  SLUICE_ASSIGN(const auto kind, parse_sampler(name));
  return SamplerOptions{.kind = kind, .eta = eta.value_or(default_eta(kind))};
}

/// x after each step, one after another.
Result<std::vector<float>> trace(const SamplerOptions& options, bool flow, const Array& sigmas, const Array& start,
                                 const Array& noise) {
  std::vector<float> x(start.values);
  for (auto& v : x) v *= sigmas.values.front();
  const auto draw = [&noise](int step, std::span<float> out) {
    const auto row = noise.at(step);
    std::copy(row.begin(), row.end(), out.begin());
  };
  SLUICE_ASSIGN(auto sampler, make_sampler(options, {sigmas.values.begin(), sigmas.values.end()}, std::move(x), draw));
  std::vector<float> all, denoised(start.values.size());
  while (!sampler->done()) {
    const int before = sampler->step();
    const auto query = sampler->next();
    for (std::size_t i = 0; i < denoised.size(); ++i) denoised[i] = static_cast<float>(denoise(flow, query.x[i], query.sigma));
    sampler->advance(denoised);
    if (sampler->step() != before) all.insert(all.end(), sampler->latent().begin(), sampler->latent().end());
  }
  return all;
}

Result<Measured> run_one(const TensorFile& io, const std::string& output, const Array& start, const Array& noise) {
  const auto [space, name, schedule] = split_dotted(output);
  SLUICE_ASSIGN(const auto options, sampler_options(name));
  const bool flow = space == "flow";
  // The samplers there are work on the variance-exploding form; of them only euler is the same in rectified flow.
  if (flow && options.kind != SamplerKind::euler) return unknown(output, fmt::format("no sampler {} for rectified flow", name));
  SLUICE_ASSIGN(const auto sigmas, read_array(io, "sigmas." + schedule));
  const auto allowed = tolerance(Work::sampling, "f32", "host");
  SLUICE_ASSIGN(const auto got, trace(options, flow, sigmas, start, noise));
  auto result = measure(io, output, got, allowed);
  // ddim with an eta is euler_a with that eta, without one euler: the second run has to meet the same numbers.
  if (options.kind == SamplerKind::euler || options.kind == SamplerKind::euler_a) {
    SLUICE_ASSIGN(const auto same, trace({.kind = SamplerKind::ddim, .eta = options.eta}, flow, sigmas, start, noise));
    auto second = measure(io, output, same, allowed);
    if (!second.problem.empty() || allowed.used(second.difference) > allowed.used(result.difference))
      result = std::move(second);
    result.note = "and as ddim";
  }
  return result;
}

}  // namespace

Result<std::vector<Measured>> run_samplers(const Case& one, const Setup&) {
  SLUICE_ASSIGN(const auto io, one.io());
  SLUICE_ASSIGN(const auto start, read_array(*io, "start"));
  SLUICE_ASSIGN(const auto noise, read_array(*io, "noise"));
  return each_output(one, [&](const std::string& output) { return run_one(*io, output, start, noise); });
}

}  // namespace sluice::golden
