#include "sampling/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "sampling/random.h"
#include "sampling/schedule.h"

namespace sluice {
namespace {

constexpr std::size_t kSize = 60;

std::vector<double> levels(ScheduleKind kind, int n) { return make_schedule(kind, NoiseTable::stable_diffusion(), n)->sigmas; }

std::vector<float> start_for(const std::vector<double>& sigmas) {
  std::vector<float> x(kSize);
  make_random_stream(RandomKind::cpu, 5)->normal(x);
  for (float& v : x) v *= static_cast<float>(sigmas[0]);
  return x;
}

/// The exact denoiser of data drawn from N(0, 0.64): its ODE has a closed solution.
std::vector<float> denoise(std::span<const float> x, double sigma) {
  std::vector<float> out;
  for (const float v : x) out.push_back(static_cast<float>(0.64 * double{v} / (0.64 + sigma * sigma)));
  return out;
}

SamplerOptions options_for(SamplerKind kind) { return {kind, default_eta(kind)}; }

std::unique_ptr<Sampler> make(const SamplerOptions& options, const std::vector<double>& sigmas, std::uint64_t seed = 1) {
  std::shared_ptr<RandomStream> noise = make_random_stream(RandomKind::cuda, seed);
  auto sampler = make_sampler(options, sigmas, start_for(sigmas), [noise](int, std::span<float> out) { noise->normal(out); });
  REQUIRE(sampler);
  return *std::move(sampler);
}

std::vector<float> run(Sampler& sampler) {
  while (!sampler.done()) {
    const auto query = sampler.next();
    sampler.advance(denoise(query.x, query.sigma));
  }
  return {sampler.latent().begin(), sampler.latent().end()};
}

}  // namespace

TEST_CASE("sampler: every name parses back; others are refused with the list") {
  CHECK(sampler_kinds().size() == 4);
  for (const auto kind : sampler_kinds()) CHECK(parse_sampler(sampler_name(kind)).value() == kind);
  CHECK(parse_sampler("dpm++2m").value() == SamplerKind::dpmpp_2m);
  for (const std::string& bad : {std::string(), std::string("Euler"), std::string("euler\0", 6), std::string(1'000'000, 'e')}) {
    const auto parsed = parse_sampler(bad);
    REQUIRE(!parsed);
    CHECK(parsed.error().code == Code::invalid_argument);
    CHECK(parsed.error().message.find("euler, euler_a, ddim, dpmpp_2m") != std::string::npos);
    CHECK(parsed.error().message.size() < 200);
  }
}

TEST_CASE("sampler: n steps are n network calls, at the schedule's sigmas, finite for every schedule and length") {
  for (const auto kind : sampler_kinds()) {
    for (const auto schedule : schedule_kinds()) {
      for (const int n : {1, 2, 3, 20, 1000}) {
        CAPTURE(sampler_name(kind));
        CAPTURE(schedule_name(schedule));
        CAPTURE(n);
        const auto sigmas = levels(schedule, n);
        const auto sampler = make(options_for(kind), sigmas);
        int calls = 0;
        while (!sampler->done()) {
          CHECK(sampler->calls_left() == n - calls);
          const auto query = sampler->next();
          REQUIRE(query.sigma == sigmas[static_cast<std::size_t>(calls)]);
          REQUIRE(query.step == calls);
          REQUIRE(query.x.size() == kSize);
          sampler->advance(denoise(query.x, query.sigma));
          ++calls;
        }
        CHECK(calls == n);
        CHECK(std::all_of(sampler->latent().begin(), sampler->latent().end(), [](float v) { return std::isfinite(v); }));
      }
    }
  }
}

TEST_CASE("sampler: noise is asked for once a step, in order, only where it is used") {
  const auto sigmas = levels(ScheduleKind::karras, 6);
  for (const auto& [options, want] : std::vector<std::pair<SamplerOptions, int>>{{{SamplerKind::euler, 0}, 0},
                                                                                 {{SamplerKind::euler_a, 1}, 5},
                                                                                 {{SamplerKind::euler_a, 0}, 0},
                                                                                 {{SamplerKind::ddim, 0}, 0},
                                                                                 {{SamplerKind::ddim, 0.3}, 5},
                                                                                 {{SamplerKind::dpmpp_2m, 0}, 0}}) {
    CAPTURE(sampler_name(options.kind));
    int calls = 0;
    auto sampler = make_sampler(options, sigmas, start_for(sigmas), [&](int step, std::span<float> out) {
      CHECK(step == calls++);
      std::fill(out.begin(), out.end(), 0.5f);
    });
    REQUIRE(sampler);
    run(**sampler);
    CHECK(calls == want);
  }
}

TEST_CASE("sampler: ddim is euler_a with its eta, and with eta 0 euler, bit for bit") {
  const auto sigmas = levels(ScheduleKind::discrete, 9);
  const auto result = [&](SamplerKind kind, double eta) { return run(*make({kind, eta}, sigmas)); };
  CHECK(result(SamplerKind::ddim, 0) == result(SamplerKind::euler, 0));
  CHECK(result(SamplerKind::euler_a, 0) == result(SamplerKind::euler, 0));
  CHECK(result(SamplerKind::ddim, 0.7) == result(SamplerKind::euler_a, 0.7));
  CHECK(result(SamplerKind::euler_a, 0.7) != result(SamplerKind::euler, 0));
}

TEST_CASE("sampler: the deterministic ones converge to the closed solution, dpmpp_2m at second order") {
  // dx/dsigma = x sigma / (0.64 + sigma^2), so x(0) = x(s) 0.8 / sqrt(0.64 + s^2).
  const auto error = [](SamplerKind kind, int n) {
    const auto sigmas = levels(ScheduleKind::karras, n);
    const auto start = start_for(sigmas), got = run(*make({kind, 0}, sigmas));
    double worst = 0;
    for (std::size_t i = 0; i < kSize; ++i) {
      const double want = double{start[i]} * 0.8 / std::sqrt(0.64 + sigmas[0] * sigmas[0]);
      worst = std::max(worst, std::abs(double{got[i]} - want));
    }
    return worst;
  };
  for (const auto kind : {SamplerKind::euler, SamplerKind::ddim, SamplerKind::dpmpp_2m}) {
    CAPTURE(sampler_name(kind));
    CHECK(error(kind, 80) < 0.6 * error(kind, 40));
    CHECK(error(kind, 80) < 0.05);
  }
  CHECK(error(SamplerKind::dpmpp_2m, 40) < 0.3 * error(SamplerKind::euler, 40));
}

TEST_CASE("sampler: interleaved latents do not touch each other") {
  const auto sigmas = levels(ScheduleKind::karras, 7);
  const auto other_sigmas = levels(ScheduleKind::discrete, 4);
  const auto alone = run(*make({SamplerKind::euler_a, 1}, sigmas, 3)),
             other_alone = run(*make({SamplerKind::dpmpp_2m, 0}, other_sigmas));
  auto a = make({SamplerKind::euler_a, 1}, sigmas, 3), b = make({SamplerKind::dpmpp_2m, 0}, other_sigmas);
  while (!a->done() || !b->done()) {
    for (auto* s : {a.get(), b.get()}) {
      if (s->done()) continue;
      const auto query = s->next();
      s->advance(denoise(query.x, query.sigma));
    }
  }
  CHECK(std::equal(alone.begin(), alone.end(), a->latent().begin()));
  CHECK(std::equal(other_alone.begin(), other_alone.end(), b->latent().begin()));
}

TEST_CASE("make_sampler: what cannot work is refused") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const auto refused = [](SamplerOptions options, std::vector<double> sigmas, NoiseSource noise = {}) {
    const auto sampler = make_sampler(options, std::move(sigmas), {1.0f}, std::move(noise));
    return !sampler && sampler.error().code == Code::invalid_argument;
  };
  for (const auto& bad :
       std::vector<std::vector<double>>{{1, 2, 0}, {1, 0, 0}, {-1}, {nan, 0}, {inf, 0}, {1, nan}, {1, -1}, {0, 0}}) {
    CHECK(refused({SamplerKind::euler, 0}, bad));
  }
  for (const double eta : {-0.1, nan, inf}) CHECK(refused({SamplerKind::euler_a, eta}, {1, 0}, [](int, std::span<float>) {}));
  CHECK(refused({SamplerKind::euler_a, 1}, {1, 0}));
  CHECK(refused({SamplerKind::dpmpp_2m, 1}, {1, 0}, [](int, std::span<float>) {}));
  CHECK(refused({SamplerKind::euler, 0.5}, {1, 0}, [](int, std::span<float>) {}));
  for (const auto& none : std::vector<std::vector<double>>{{}, {0}, {1}}) {
    const auto sampler = make_sampler({}, none, {7.0f});
    REQUIRE(sampler);
    CHECK((*sampler)->done());
    CHECK((*sampler)->latent()[0] == 7.0f);
  }
}

}  // namespace sluice
