#pragma once

#include <span>
#include <vector>

namespace sluice {

/// The noise levels a discrete diffusion model was trained on, and the way between them and timesteps.
/// sigma[t] = sqrt((1 - abar[t]) / abar[t]), abar the running product of 1 - beta. All in f64. Immutable.
class NoiseTable {
 public:
  /// betas = linspace(sqrt(first), sqrt(last), steps)^2: "scaled linear" (CompVis/stable-diffusion, make_beta_schedule).
  /// `steps` >= 2, 0 < first <= last < 1.
  static NoiseTable scaled_linear(int steps, double first, double last);
  /// SD 1.x, 2.x and XL: 1000 steps, 0.00085 to 0.012. Made once; any thread.
  static const NoiseTable& stable_diffusion();

  int steps() const { return static_cast<int>(sigmas_.size()); }
  std::span<const double> sigmas() const { return sigmas_; }
  std::span<const double> alphas_cumprod() const { return alphas_cumprod_; }
  double sigma_min() const { return sigmas_.front(); }
  double sigma_max() const { return sigmas_.back(); }

  /// Log-linear between the table's entries; `t` is clamped to [0, steps - 1].
  double t_to_sigma(double t) const;
  /// The inverse, not rounded, clamped to [0, steps - 1]: what the network gets as its timestep. sigma 0 gives 0.
  double sigma_to_t(double sigma) const;

 private:
  std::vector<double> alphas_cumprod_, sigmas_, log_sigmas_;
};

}  // namespace sluice
