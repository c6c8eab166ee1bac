#include "sampling/schedule.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <string>

namespace sluice {

TEST_CASE("schedule: every name parses back; others are refused with the list") {
  CHECK(schedule_kinds().size() == 3);
  for (const auto kind : schedule_kinds()) CHECK(parse_schedule(schedule_name(kind)).value() == kind);
  for (const std::string& bad : {std::string(), std::string("Karras"), std::string("karras "), std::string(1'000'000, 'k')}) {
    const auto parsed = parse_schedule(bad);
    REQUIRE(!parsed);
    CHECK(parsed.error().code == Code::invalid_argument);
    CHECK(parsed.error().message.find("discrete, leading, karras") != std::string::npos);
    CHECK(parsed.error().message.size() < 200);
  }
}

TEST_CASE("make_schedule: 1 to 1000 steps fall to exactly 0 and stay within the table") {
  const NoiseTable& table = NoiseTable::stable_diffusion();
  for (const auto kind : schedule_kinds()) {
    for (int n = 1; n <= 1000; ++n) {
      CAPTURE(schedule_name(kind));
      CAPTURE(n);
      const auto schedule = make_schedule(kind, table, n);
      REQUIRE(schedule);
      REQUIRE(schedule->sigmas.size() == static_cast<std::size_t>(n) + 1);
      REQUIRE(schedule->steps() == n);
      bool falls = true, within = true, paired = true;
      for (std::size_t i = 0; i + 1 < schedule->sigmas.size(); ++i) {
        const double sigma = schedule->sigmas[i], t = schedule->timesteps[i];
        const bool doubled = kind == ScheduleKind::leading && n == 1000 && i == 0;
        falls &= doubled ? sigma == schedule->sigmas[i + 1] : sigma > schedule->sigmas[i + 1];
        within &= sigma >= table.sigma_min() && sigma <= table.sigma_max() && t >= 0 && t <= 999;
        paired &= std::abs(table.sigma_to_t(sigma) - t) < 1e-6;
      }
      CHECK(falls);
      CHECK(within);
      CHECK(paired);
      CHECK(schedule->sigmas.back() == 0.0);
    }
    for (const int n : {0, -1, 1001, -2147483647}) CHECK(make_schedule(kind, table, n).error().code == Code::invalid_argument);
  }
}

TEST_CASE("make_schedule: one step") {
  const NoiseTable& table = NoiseTable::stable_diffusion();
  CHECK(make_schedule(ScheduleKind::discrete, table, 1)->sigmas == std::vector<double>{table.sigma_max(), 0});
  CHECK(make_schedule(ScheduleKind::karras, table, 1)->sigmas[0] == doctest::Approx(table.sigma_max()).epsilon(1e-14));
  CHECK(make_schedule(ScheduleKind::leading, table, 1)->timesteps == std::vector<double>{1});
}

TEST_CASE("make_schedule: leading, 20 steps, as diffusers' EulerDiscreteScheduler gives them (f32)") {
  // From the demo model's reference file, which stock diffusers reproduces.
  const double timesteps[] = {951, 901, 851, 801, 751, 701, 651, 601, 551, 501, 451, 401, 351, 301, 251, 201, 151, 101, 51, 1};
  const double sigmas[] = {11.02833080291748,  8.390685081481934,   6.506397724151611,
                           5.134430885314941,  4.116696357727051,   3.3477635383605957,
                           2.7561957836151123, 2.292853832244873,   1.92344331741333,
                           1.6236920356750488, 1.3761788606643677,  1.1682159900665283,
                           0.9904088973999023, 0.8356528282165527,  0.6983981132507324,
                           0.57405024766922,   0.45833268761634827, 0.34618669748306274,
                           0.2281467318534851, 0.04131441190838814, 0.0};
  const auto schedule = make_schedule(ScheduleKind::leading, NoiseTable::stable_diffusion(), 20);
  REQUIRE(schedule);
  for (std::size_t i = 0; i < 20; ++i) CHECK(schedule->timesteps[i] == timesteps[i]);
  for (std::size_t i = 0; i < 21; ++i) CHECK(schedule->sigmas[i] == doctest::Approx(sigmas[i]).epsilon(2e-7));
  CHECK(schedule->initial_scale == doctest::Approx(std::sqrt(sigmas[0] * sigmas[0] + 1)).epsilon(2e-7));
  const auto discrete = make_schedule(ScheduleKind::discrete, NoiseTable::stable_diffusion(), 20);
  CHECK(discrete->initial_scale == discrete->sigmas[0]);
}

TEST_CASE("noise table: sigma and timestep are each other's inverse, and clamped") {
  const NoiseTable& table = NoiseTable::stable_diffusion();
  std::mt19937 rng(1);
  for (int i = 0; i < 10'000; ++i) {
    const double t = std::uniform_real_distribution(0.0, 999.0)(rng);
    REQUIRE(table.sigma_to_t(table.t_to_sigma(t)) == doctest::Approx(t).epsilon(1e-9));
  }
  for (int t = 0; t < 1000; ++t) REQUIRE(table.t_to_sigma(t) == table.sigmas()[static_cast<std::size_t>(t)]);
  CHECK(table.t_to_sigma(-5) == table.sigma_min());
  CHECK(table.t_to_sigma(1e9) == table.sigma_max());
  CHECK(table.sigma_to_t(0) == 0);
  CHECK(table.sigma_to_t(-1) == 0);
  CHECK(table.sigma_to_t(NAN) == 0);
  CHECK(table.sigma_to_t(INFINITY) == 999);
}

}  // namespace sluice
