#include "sluice/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/file_hash.h"
#include "io/image.h"
#include "pipeline/budget.h"
#include "pipeline/parameters.h"
#include "pipeline/plan_report.h"
#include "pipeline/text_to_image.h"

namespace sluice {
namespace {

Result<Policy> parse_policy(const std::string& name) {
  for (const Policy p : {Policy::interleaved, Policy::first_k, Policy::all_streamed, Policy::all_resident}) {
    if (policy_name(p) == name) return p;
  }
  return fail(Code::invalid_argument,
              fmt::format("policy '{}' is unknown: use interleaved, first-k, all-streamed or all-resident", name));
}

HostTier tier_of(Tier tier) {
  switch (tier) {
    case Tier::read: return HostTier::read;
    case Tier::disk: return HostTier::disk;
    case Tier::automatic:
    case Tier::mapped: break;
  }
  return HostTier::mapped;
}

// −1…1 to 0…255 with rounding, planes [W, H, 3] to interleaved pixels.
std::vector<std::uint8_t> to_rgb(std::span<const float> planes, int width, int height) {
  const std::size_t n = static_cast<std::size_t>(width) * static_cast<std::size_t>(height);
  std::vector<std::uint8_t> rgb(3 * n);
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t i = 0; i < n; ++i) {
      const float v = std::clamp(planes[c * n + i] * 0.5f + 0.5f, 0.0f, 1.0f);
      rgb[3 * i + c] = static_cast<std::uint8_t>(std::lround(v * 255.0f));
    }
  }
  return rgb;
}

class EngineImpl final : public Engine {
 public:
  EngineImpl(EngineOptions options, std::unique_ptr<Device> device, SessionOptions session_options)
      : options_(std::move(options)),
        device_(std::move(device)),
        store_(*device_, {tier_of(options_.tier), options_.host_budget, options_.log}),
        session_(*device_, store_, std::move(session_options)) {}

  Status load() {
    SLUICE_ASSIGN(model_, load_model({options_.model, options_.vae, options_.clip_l}, *system_files(), store_, options_.log));
    return {};
  }

  Result<PlanReport> plan(const Request& request) override {
    SLUICE_ASSIGN(const Settings settings, check_request(request, model_->rule));
    return plan_of(settings);
  }

  Result<Generated> generate(const Request& request, const ProgressFunction& progress, const CancelToken& cancel) override {
    Stopwatch clock;
    SLUICE_ASSIGN(const Settings settings, check_request(request, model_->rule));
    if (settings.request.cfg_scale == 0) options_.log(LogLevel::warning, "cfg scale 0: the prompt is not used");
    if (settings.request.cfg_scale == 1 && !settings.request.negative_prompt.empty())
      options_.log(LogLevel::warning, "cfg scale 1: the negative prompt is not used");
    device_->ledger().reset_peak();
    const Bytes read_before = store_.counters().bytes_read;
    const int arenas_before = session_.counters().arenas_opened, plans_before = session_.counters().plans_built;
    const auto make = [&]() -> Result<Generated> {
      SLUICE_ASSIGN(PlanReport report, plan_of(settings));
      TextToImage pipeline(*model_, store_, session_);
      SLUICE_ASSIGN(Drawn drawn, pipeline.draw(settings, progress, cancel));
      Generated out;
      out.plan = std::move(report);
      out.runs = std::move(drawn.runs);
      for (auto& run : out.runs) run.plans_built = session_.counters().plans_built - plans_before;
      SLUICE_ASSIGN(const std::string hash, hash_of_model(cancel));
      for (std::size_t i = 0; i < drawn.pixels.size(); ++i) {
        Picture p;
        p.width = settings.request.width;
        p.height = settings.request.height;
        p.rgb = to_rgb(drawn.pixels[i], p.width, p.height);
        p.latent = std::move(drawn.latents[i]);
        p.seed = static_cast<std::int64_t>(image_seed(static_cast<std::uint64_t>(settings.request.seed), i));
        p.parameters = parameters_text(settings, p.seed, model_->name, hash, session_.variants().hash());
        out.pictures.push_back(std::move(p));
      }
      return out;
    };
    auto out = make();
    if (!out) {
      // An arena that this request opened goes with it, so that the books are as they were.
      if (session_.counters().arenas_opened != arenas_before) session_.release();
      return fail(std::move(out).error());
    }
    const LedgerReport books = device_->ledger().report();
    out->ledger_peak = books.peak;
    out->device_limit = books.limit.value_or(0);
    out->bytes_read = store_.counters().bytes_read - read_before;
    out->seconds = clock.seconds();
    return out;
  }

 private:
  Result<PlanReport> plan_of(const Settings& settings) {
    SLUICE_TRY(follow_memory(options_.device_budget, *device_, options_.reserve, session_));
    SLUICE_ASSIGN(const auto specs, TextToImage(*model_, store_, session_).stages(settings));
    auto prepared = session_.prepare(specs);
    if (!prepared) {
      Error e = std::move(prepared).error();
      if (e.code == Code::over_budget && e.needed > 0) e.message = refusal(e, settings);
      return fail(std::move(e));
    }
    PlanReport report = plan_report(**prepared, store_, *device_, session_.options().budget);
    report.width = settings.request.width;
    report.height = settings.request.height;
    return report;
  }

  std::string refusal(const Error& e, const Settings& s) const {
    return fmt::format(
        "{}x{} needs {} ({} bytes) on {}, the budget is {} ({} bytes): raise --device-budget to {} or lower --width, --height "
        "or --batch",
        s.request.width, s.request.height, format_bytes(e.needed), e.needed, device_->info().name, format_bytes(e.available),
        e.available, e.needed);
  }

  Result<std::string> hash_of_model(const CancelToken& cancel) {
    if (hash_.empty()) {
      SLUICE_ASSIGN(hash_, model_hash(*model_->file->file, cancel));
    }
    return hash_;
  }

  EngineOptions options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<LoadedModel> model_;  // before the store, which refers to its models
  WeightStore store_;
  Session session_;
  std::string hash_;
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::open(EngineOptions options) {
  SLUICE_ASSIGN(const Policy policy, parse_policy(options.policy));
  SLUICE_ASSIGN(auto device, open_device(options.device));
  SessionOptions session;
  SLUICE_ASSIGN(session.budget, resolve_budget(options.device_budget, *device, 0, options.reserve));
  session.plan.policy = policy;
  if (!options.prefetch) session.plan.max_in_flight = 1;
  session.log = options.log;
  auto engine = std::make_unique<EngineImpl>(std::move(options), std::move(device), std::move(session));
  SLUICE_TRY(engine->load());
  return engine;
}

Status write_picture(const std::string& path, const Picture& picture) {
  return write_png(path, {picture.width, picture.height, picture.rgb}, {{"parameters", picture.parameters}});
}

}  // namespace sluice
