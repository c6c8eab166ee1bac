#include "sampling/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sampling/names.h"

namespace sluice {
namespace {

constexpr std::pair<ScheduleKind, std::string_view> kNames[] = {
    {ScheduleKind::discrete, "discrete"}, {ScheduleKind::leading, "leading"}, {ScheduleKind::karras, "karras"}};
constexpr ScheduleKind kKinds[] = {ScheduleKind::discrete, ScheduleKind::leading, ScheduleKind::karras};

/// `i`-th of `n` evenly spaced values, both ends included; the first alone if n is 1.
double linspace(double from, double to, int n, int i) { return n == 1 ? from : from + (to - from) * i / (n - 1); }

}  // namespace

std::span<const ScheduleKind> schedule_kinds() { return kKinds; }
std::string_view schedule_name(ScheduleKind kind) { return name_in<ScheduleKind>(kind, kNames); }
Result<ScheduleKind> parse_schedule(std::string_view name) { return parse_name<ScheduleKind>("schedule", name, kNames); }

Result<Schedule> make_schedule(ScheduleKind kind, const NoiseTable& table, int steps) {
  const int trained = table.steps();
  if (steps < 1 || steps > trained) {
    return fail(Code::invalid_argument, fmt::format("{} steps: use 1 to {}", steps, trained));
  }
  Schedule schedule;
  constexpr double kRho = 7;
  const double high = std::pow(table.sigma_max(), 1 / kRho), low = std::pow(table.sigma_min(), 1 / kRho);
  for (int i = 0; i < steps; ++i) {
    double t = 0, sigma = 0;
    switch (kind) {
      case ScheduleKind::discrete:
        t = linspace(trained - 1, 0, steps, i);
        sigma = table.t_to_sigma(t);
        break;
      case ScheduleKind::leading:
        t = std::min((steps - 1 - i) * (trained / steps) + 1, trained - 1);
        sigma = table.t_to_sigma(t);
        break;
      case ScheduleKind::karras:
        sigma = std::clamp(std::pow(linspace(high, low, steps, i), kRho), table.sigma_min(), table.sigma_max());
        t = table.sigma_to_t(sigma);
        break;
    }
    schedule.timesteps.push_back(t);
    schedule.sigmas.push_back(sigma);
  }
  const double first = schedule.sigmas[0];
  schedule.initial_scale = kind == ScheduleKind::leading ? std::sqrt(first * first + 1) : first;
  schedule.sigmas.push_back(0);
  return schedule;
}

}  // namespace sluice
