// The demo model against PyTorch: tokens, contexts, schedules, twenty guided steps from the same noise, the decoded picture.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/image.h"
#include "io/tensor_file.h"
#include "io/test_folder.h"
#include "support/f32_model.h"
#include "support/rig.h"
#include "text/chunks.h"

using namespace sluice;
using namespace sluice::test;

namespace {

const std::string kFolder = std::string(SLUICE_SOURCE_DIR) + "/tests/golden/demo/";
constexpr const char* kPrompts[] = {"a red apple", "cat face", "rocket on a blue background", "pizza"};
constexpr const char* kSchedules[] = {"discrete", "leading"};

#ifdef SLUICE_SANITIZED
constexpr int kPictures = 1;  // of each schedule; a picture takes minutes there
#else
constexpr int kPictures = 4;
#endif

/// A tensor of the reference file; shapes in torch's order are planes in ggml's, so nothing is rearranged.
template <typename T>
std::vector<T> reference(const std::string& name) {
  static const auto file = open_tensor_file(kFolder + "reference.safetensors", *system_files());
  REQUIRE(file);
  const TensorInfo* info = (*file)->find(name);
  REQUIRE_MESSAGE(info, name);
  std::vector<T> values(static_cast<std::size_t>(info->elements()));
  REQUIRE(info->size == values.size() * sizeof(T));
  REQUIRE(read_tensor(**file, *info, std::as_writable_bytes(std::span(values))));
  return values;
}

/// rms(got − want) ÷ rms(want).
double relative(std::span<const float> got, std::span<const float> want) {
  REQUIRE(got.size() == want.size());
  double error = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    size += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(error / size);
}

/// Share of the PNG's values that the picture meets within one level of 255.
double share_within_one(std::span<const float> planes, const std::string& png) {
  const auto want = read_png(png);
  REQUIRE(want);
  const std::size_t n = want->rgb.size() / 3;
  REQUIRE(planes.size() == 3 * n);
  std::size_t within = 0;
  for (std::size_t i = 0; i < 3 * n; ++i) {
    const float v = std::clamp(planes[i % 3 * n + i / 3] * 0.5f + 0.5f, 0.0f, 1.0f);
    within += std::abs(std::lround(v * 255.0f) - want->rgb[i]) <= 1;
  }
  return static_cast<double>(within) / static_cast<double>(3 * n);
}

/// The most that a kind of weights may differ by, as relative rms.
struct Bounds {
  double context, latent, image;
};

struct Worst {
  double context = 0, latent = 0, image = 0;
  double png = 1;  ///< smallest share
};

Settings settings_of(Rig& rig, int prompt, const char* schedule) {
  Request request;
  request.prompt = kPrompts[prompt];
  request.steps = 20;
  request.cfg_scale = 5;
  request.schedule = schedule;
  request.seed = 0;
  auto settings = check_request(request, rig.model().rule);
  REQUIRE_MESSAGE(settings, settings.error().message);
  settings->start_noise = {reference<float>(std::to_string(prompt) + ".noise")};
  return std::move(*settings);
}

Drawn draw(Rig& rig, int prompt, const char* schedule, Worst& worst) {
  Watch watch;
  const std::string i = std::to_string(prompt);
  watch.context = [&](std::span<const float> cond, std::span<const float> uncond) {
    worst.context = std::max({worst.context, relative(cond, reference<float>(i + ".context")),
                              relative(uncond, reference<float>("uncond.context"))});
  };
  auto drawn = rig.draw(settings_of(rig, prompt, schedule), {}, watch);
  REQUIRE_MESSAGE(drawn, drawn.error().message);
  const std::string name = std::string(schedule) + "." + i;
  worst.latent = std::max(worst.latent, relative(drawn->latents.at(0), reference<float>(name + ".latent")));
  worst.image = std::max(worst.image, relative(drawn->pixels.at(0), reference<float>(name + ".image")));
  if (std::string_view(schedule) == "discrete")
    worst.png = std::min(worst.png, share_within_one(drawn->pixels[0], kFolder + "discrete-" + i + ".png"));
  return std::move(*drawn);
}

void check(const Worst& worst, const Bounds& bounds) {
  MESSAGE(fmt::format("relative rms: context {:.2e}, latent {:.2e}, image {:.2e}; PNG values within one level: {:.4f} %",
                      worst.context, worst.latent, worst.image, 100 * worst.png));
  CHECK(worst.context > 0);  // it was looked at
  CHECK(worst.context <= bounds.context);
  CHECK(worst.latent <= bounds.latent);
  CHECK(worst.image <= bounds.image);
  CHECK(worst.png >= 0.999);
}

std::unique_ptr<Rig> open(const RigOptions& options) {
  auto rig = Rig::open(options);
  REQUIRE_MESSAGE(rig, rig.error().message);
  return std::move(*rig);
}

}  // namespace

TEST_CASE("token ids are those of the reference") {
  for (int i = 0; i < 4; ++i) {
    const TokenChunks got = tokenize_prompt(ClipTokenizer::standard(), kPrompts[i]);
    const auto want = reference<std::int32_t>(std::to_string(i) + ".token_ids");
    REQUIRE(got.count() == 1);
    CHECK(std::equal(got.ids[0].begin(), got.ids[0].end(), want.begin(), want.end()));
  }
  const auto want = reference<std::int32_t>("uncond.token_ids");
  const TokenChunks empty = tokenize_prompt(ClipTokenizer::standard(), "");
  CHECK(std::equal(empty.ids[0].begin(), empty.ids[0].end(), want.begin(), want.end()));
}

TEST_CASE("timesteps and sigmas are those of the reference") {
  for (const char* name : kSchedules) {
    CAPTURE(std::string(name));
    const auto kind = parse_schedule(name);
    REQUIRE(kind);
    const auto schedule = make_schedule(*kind, NoiseTable::stable_diffusion(), 20);
    REQUIRE(schedule);
    const auto timesteps = reference<float>(std::string(name) + ".timesteps");
    const auto sigmas = reference<float>(std::string(name) + ".sigmas");
    REQUIRE(schedule->timesteps.size() == timesteps.size());
    REQUIRE(schedule->sigmas.size() == sigmas.size());
    double worst = 0;
    const auto meet = [&](double got, float want) {
      worst = std::max(worst, std::abs(got - want) / std::max(std::abs(static_cast<double>(want)), 1e-30));
    };
    for (std::size_t i = 0; i < timesteps.size(); ++i) meet(schedule->timesteps[i], timesteps[i]);
    for (std::size_t i = 0; i + 1 < sigmas.size(); ++i) meet(schedule->sigmas[i], sigmas[i]);
    MESSAGE(fmt::format("{}: largest relative difference {:.2e}", name, worst));
    // The reference is rounded to f32, which is 2^-24 = 6e-8 at most; ours are f64.
    CHECK(worst <= 1.2e-7);
    CHECK(schedule->sigmas.back() == 0);
    CHECK(sigmas.back() == 0);
  }
}

TEST_CASE(
    "the stored weights: pictures of the reference up to the rounding of f16 products, on the CPU and when memory is tight") {
  RigOptions on_cpu;
  on_cpu.device = "cpu:threads=1";
  const auto cpu = open(on_cpu);
  Bytes smallest = 0;
  {
    const auto rig = open({});
    Request request;
    request.prompt = kPrompts[0];
    auto prepared = rig->prepare(request);
    REQUIRE(prepared);
    smallest = (*prepared)->plan().smallest + (*prepared)->backend();
  }
  RigOptions tight;
  tight.budget = smallest;
  const auto sim = open(tight);

  Worst worst, ignored;
  for (const char* schedule : kSchedules) {
    for (int i = 0; i < kPictures; ++i) {
      CAPTURE(std::string(schedule));
      CAPTURE(i);
      const Drawn drawn = draw(*cpu, i, schedule, worst);
      if (std::string_view(schedule) != "discrete") continue;  // nothing in a placement knows of schedules
      const Drawn streamed = draw(*sim, i, schedule, ignored);
      CHECK(streamed.latents == drawn.latents);
      CHECK(streamed.pixels == drawn.pixels);
    }
  }
  CHECK(sim->device().high_water() <= smallest);
  // Activations that meet f16 weights are rounded to f16 (2^-11). Measured 1.9e-4, 5.4e-4 and 3.6e-4; three times that.
  check(worst, {.context = 6e-4, .latent = 1.6e-3, .image = 1.1e-3});
}

TEST_CASE("the weights widened to f32: pictures of the reference up to the order of sums") {
  Folder folder;
  const std::string model = folder / "f32.safetensors";
  REQUIRE(write_f32_model(model));
  RigOptions options;
  options.device = "cpu:threads=1";
  options.model = model;
  const auto rig = open(options);
  Worst worst;
  for (const char* schedule : kSchedules) {
    for (int i = 0; i < kPictures; ++i) draw(*rig, i, schedule, worst);
  }
  // The order of sums depends on the width of the processor's vectors. Measured 2.5e-7, 4.9e-7 and 1.5e-6; three times that.
  check(worst, {.context = 8e-7, .latent = 1.5e-6, .image = 4.6e-6});
}

TEST_CASE("start noise: the stream's own first draw changes nothing, another does, wrong sizes are refused") {
  const auto rig = open({});
  const Request request = small_request();
  auto settings = check_request(request, rig->model().rule);
  REQUIRE(settings);
  settings->sampler = SamplerKind::euler_a;  // draws again later
  const auto drawn = rig->draw(*settings);
  REQUIRE(drawn);
  std::vector<float> noise(drawn->latents.at(0).size());
  make_random_stream(settings->rng, image_seed(static_cast<std::uint64_t>(request.seed), 0))->normal(noise);
  settings->start_noise = {noise};
  const auto same = rig->draw(*settings);
  REQUIRE(same);
  CHECK(same->latents == drawn->latents);
  std::swap(settings->start_noise[0].front(), settings->start_noise[0].back());
  const auto other = rig->draw(*settings);
  REQUIRE(other);
  CHECK(other->latents != drawn->latents);

  settings->start_noise[0].pop_back();
  const auto counters = rig->device().counters();
  const auto shorter = rig->draw(*settings);
  REQUIRE_FALSE(shorter);
  CHECK(shorter.error().code == Code::invalid_argument);
  settings->start_noise = {noise, noise};
  const auto more = rig->draw(*settings);
  REQUIRE_FALSE(more);
  CHECK(more.error().code == Code::invalid_argument);
  CHECK(rig->device().counters().computes == counters.computes);
}
