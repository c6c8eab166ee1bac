#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

/// Solvers for the probability-flow ODE in the variance-exploding form dx/dsigma = (x - D(x, sigma)) / sigma.
/// All here call the network once a step: n steps, n calls.
enum class SamplerKind {
  euler,     ///< Karras et al. 2022, algorithm 1 without churn
  euler_a,   ///< ancestral: a step down to sigma_down, then fresh noise of sigma_up; eta 1 unless given
  ddim,      ///< Song et al. 2021; in this form the same steps as euler_a, with eta 0 unless given (then equal to euler)
  dpmpp_2m,  ///< Lu et al. 2022, DPM-Solver++(2M): second order from the last two predictions; no noise
};

/// Every kind, in the order people should read them.
std::span<const SamplerKind> sampler_kinds();
/// "euler", "euler_a", "ddim", "dpmpp_2m". Every kind's name parses back to it.
std::string_view sampler_name(SamplerKind kind);
/// "dpm++2m" is understood too. Errors: invalid_argument, listing the valid names.
Result<SamplerKind> parse_sampler(std::string_view name);
/// 1 for euler_a, 0 for the others.
double default_eta(SamplerKind kind);

/// Fills `out` with unit normals for step `step` (0-based). Called once for each step that adds noise, in rising order: in
/// euler_a and ddim with eta > 0, every step but those that end at sigma 0.
using NoiseSource = std::function<void(int step, std::span<float> out)>;

struct SamplerOptions {
  SamplerKind kind = SamplerKind::euler;
  double eta = 0;  ///< share of fresh noise in euler_a and ddim, >= 0; see default_eta. Others must leave it 0
};

/// One latent on its way through a schedule. It never calls the network: the caller asks what to evaluate and hands the
/// prediction back, so that the steps of many latents can share a sweep.
///
///   while (!sampler->done()) {
///     const auto [x, sigma, step] = sampler->next();
///     ... denoised = D(x, sigma) ...
///     sampler->advance(denoised);
///   }
///
/// The latent is f32; each element's arithmetic is f64, rounded once a step. Not thread safe; one object per latent.
class Sampler {
 public:
  struct Query {
    std::span<const float> x;  ///< valid until `advance`
    double sigma = 0;          ///< > 0
    int step = 0;              ///< index into the schedule, 0-based
  };
  virtual ~Sampler() = default;

  bool done() const { return step_ >= steps(); }
  int step() const { return step_; }
  int steps() const { return static_cast<int>(sigmas_.size()) - 1; }
  /// Network calls still to come.
  virtual int calls_left() const { return steps() - step_; }
  /// What to evaluate now. Not to be called when done.
  virtual Query next() const { return {x_, sigmas_[static_cast<std::size_t>(step_)], step_}; }
  /// Takes D(x, sigma) for the last `next`, as many elements as x. Not to be called when done.
  virtual void advance(std::span<const float> denoised) = 0;
  /// x after the steps taken so far; the result once done.
  std::span<const float> latent() const { return x_; }

 protected:
  Sampler(std::vector<double> sigmas, std::vector<float> start) : x_(std::move(start)), sigmas_(std::move(sigmas)) {}
  std::vector<float> x_;
  std::vector<double> sigmas_;
  int step_ = 0;
};

/// `sigmas`: n + 1 levels, falling or equal, all but the last > 0, the last >= 0 (0 for a finished picture). `start`: x at
/// sigmas[0], any shape. `noise` is needed where eta > 0 and is kept. No sigmas or one: done at once.
/// Errors: invalid_argument (sigmas, eta or missing noise).
Result<std::unique_ptr<Sampler>> make_sampler(const SamplerOptions& options, std::vector<double> sigmas,
                                              std::vector<float> start, NoiseSource noise = {});

}  // namespace sluice
