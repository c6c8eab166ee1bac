#include "sampling/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>

#include "sampling/names.h"

namespace sluice {
namespace {

constexpr std::pair<SamplerKind, std::string_view> kNames[] = {{SamplerKind::euler, "euler"},
                                                               {SamplerKind::euler_a, "euler_a"},
                                                               {SamplerKind::ddim, "ddim"},
                                                               {SamplerKind::dpmpp_2m, "dpmpp_2m"}};
constexpr SamplerKind kKinds[] = {SamplerKind::euler, SamplerKind::euler_a, SamplerKind::ddim, SamplerKind::dpmpp_2m};

/// A step from `sigma` to `next` split into a deterministic part that ends at `down` and noise of `up`, where
/// down^2 + up^2 = next^2.
struct Ancestral {
  double down = 0, up = 0;
};

Ancestral ancestral(double sigma, double next, double eta) {
  if (next == 0) return {};
  if (eta == 0) return {next, 0};
  const double s2 = sigma * sigma, n2 = next * next;
  const double up = std::min(next, eta * std::sqrt(n2 * std::max(s2 - n2, 0.0) / s2));
  return {std::sqrt(n2 - up * up), up};
}

/// euler, euler_a and ddim: one formula, eta apart.
class EulerSampler final : public Sampler {
 public:
  EulerSampler(double eta, std::vector<double> sigmas, std::vector<float> start, NoiseSource noise)
      : Sampler(std::move(sigmas), std::move(start)), eta_(eta), source_(std::move(noise)) {}

  void advance(std::span<const float> denoised) override {
    assert(!done() && denoised.size() == x_.size());
    const auto i = static_cast<std::size_t>(step_);
    const double sigma = sigmas_[i];
    const auto [down, up] = ancestral(sigma, sigmas_[i + 1], eta_);
    if (up > 0) {
      noise_.resize(x_.size());
      source_(step_, noise_);
    }
    for (std::size_t k = 0; k < x_.size(); ++k) {
      const double slope = (double{x_[k]} - double{denoised[k]}) / sigma;
      const double fresh = up > 0 ? up * double{noise_[k]} : 0.0;
      x_[k] = static_cast<float>(double{x_[k]} + slope * (down - sigma) + fresh);
    }
    ++step_;
  }

 private:
  double eta_;
  NoiseSource source_;
  std::vector<float> noise_;
};

class Dpmpp2mSampler final : public Sampler {
 public:
  Dpmpp2mSampler(std::vector<double> sigmas, std::vector<float> start) : Sampler(std::move(sigmas), std::move(start)) {}

  void advance(std::span<const float> denoised) override {
    assert(!done() && denoised.size() == x_.size());
    const auto i = static_cast<std::size_t>(step_);
    const double sigma = sigmas_[i], next = sigmas_[i + 1];
    if (next == 0) {
      x_.assign(denoised.begin(), denoised.end());
    } else {
      const double h = std::log(sigma) - std::log(next);
      // 1 / (2 r), r = last h / h. A last step of no length gives no slope: first order then.
      const double last_h = i > 0 ? std::log(sigmas_[i - 1]) - std::log(sigma) : 0.0;
      const double extrapolate = last_h > 0 ? h / last_h / 2 : 0.0;
      const double keep = next / sigma, take = -std::expm1(-h);
      for (std::size_t k = 0; k < x_.size(); ++k) {
        const double d = denoised[k];
        const double ahead = extrapolate > 0 ? d + extrapolate * (d - double{previous_[k]}) : d;
        x_[k] = static_cast<float>(keep * double{x_[k]} + take * ahead);
      }
    }
    previous_.assign(denoised.begin(), denoised.end());
    ++step_;
  }

 private:
  std::vector<float> previous_;
};

Status check(const SamplerOptions& options, std::span<const double> sigmas, const NoiseSource& noise) {
  for (std::size_t i = 0; i < sigmas.size(); ++i) {
    const bool last = i + 1 == sigmas.size();
    const bool ok =
        std::isfinite(sigmas[i]) && (last ? sigmas[i] >= 0 : sigmas[i] > 0) && (i == 0 || sigmas[i] <= sigmas[i - 1]);
    if (!ok) {
      return fail(Code::invalid_argument,
                  fmt::format("sigma {} of {} is {}: sigmas are positive and fall; only the last may be 0", i, sigmas.size(),
                              sigmas[i]));
    }
  }
  if (!std::isfinite(options.eta) || options.eta < 0) {
    return fail(Code::invalid_argument, fmt::format("eta {}: use 0 or more", options.eta));
  }
  const bool ancestral_kind = options.kind == SamplerKind::euler_a || options.kind == SamplerKind::ddim;
  if (options.eta > 0 && !ancestral_kind) {
    return fail(Code::invalid_argument,
                fmt::format("{} adds no noise: leave out eta, or use euler_a or ddim", sampler_name(options.kind)));
  }
  if (options.eta > 0 && !noise) return fail(Code::invalid_argument, "eta above 0 needs a source of noise");
  return {};
}

}  // namespace

std::span<const SamplerKind> sampler_kinds() { return kKinds; }
std::string_view sampler_name(SamplerKind kind) { return name_in<SamplerKind>(kind, kNames); }
Result<SamplerKind> parse_sampler(std::string_view name) {
  if (name == "dpm++2m") return SamplerKind::dpmpp_2m;
  return parse_name<SamplerKind>("sampler", name, kNames);
}
double default_eta(SamplerKind kind) { return kind == SamplerKind::euler_a ? 1.0 : 0.0; }

Result<std::unique_ptr<Sampler>> make_sampler(const SamplerOptions& options, std::vector<double> sigmas,
                                              std::vector<float> start, NoiseSource noise) {
  SLUICE_TRY(check(options, sigmas, noise));
  if (sigmas.empty()) sigmas.push_back(0);
  std::unique_ptr<Sampler> sampler;
  if (options.kind == SamplerKind::dpmpp_2m) {
    sampler = std::make_unique<Dpmpp2mSampler>(std::move(sigmas), std::move(start));
  } else {
    sampler = std::make_unique<EulerSampler>(options.eta, std::move(sigmas), std::move(start), std::move(noise));
  }
  return sampler;
}

}  // namespace sluice
