#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sampling/noise_table.h"

namespace sluice {

/// How n steps are spread over the noise levels of a table of T entries.
enum class ScheduleKind {
  discrete,  ///< t = linspace(T - 1, 0, n), log-linear between entries (k-diffusion's get_sigmas)
  leading,   ///< t = (n - 1 - i) * (T / n) + 1 in whole numbers: diffusers' default for SD 1.x (steps_offset 1)
  karras,    ///< rho 7 between sigma_max and sigma_min (Karras et al. 2022, equation 5)
};

/// Every kind, in the order people should read them.
std::span<const ScheduleKind> schedule_kinds();
/// "discrete", "leading", "karras". Every kind's name parses back to it.
std::string_view schedule_name(ScheduleKind kind);
/// Errors: invalid_argument, listing the valid names.
Result<ScheduleKind> parse_schedule(std::string_view name);

/// The noise levels of a run. n steps have n + 1 sigmas, never rising; the last is exactly 0.
struct Schedule {
  std::vector<double> sigmas;     ///< [n + 1]
  std::vector<double> timesteps;  ///< [n], what the network gets at sigmas[i]; fractional, except in `leading`
  /// The first latent is noise times this: sigmas[0], or sqrt(sigmas[0]^2 + 1) in `leading` (as diffusers starts there).
  double initial_scale = 0;

  int steps() const { return static_cast<int>(timesteps.size()); }
};

/// Errors: invalid_argument unless 1 <= steps <= table.steps(). One step: from sigma_max in discrete and karras; `leading` has
/// only t = 1 there, as diffusers has. At steps = T `leading` would begin beyond the table and begins with its last entry
/// twice.
Result<Schedule> make_schedule(ScheduleKind kind, const NoiseTable& table, int steps);

}  // namespace sluice
