#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/file_hash.h"
#include "pipeline/engine_core.h"
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

SessionOptions session_options(EngineCore& core, Policy policy, const ModelOptions& model) {
  SessionOptions options;
  options.plan.policy = policy;
  if (!model.prefetch) options.plan.max_in_flight = 1;
  options.log = core.options.log;
  options.follow = [&core] { return core.follow(); };
  return options;
}

class ModelSessionImpl final : public ModelSession, public IdleListener {
 public:
  ModelSessionImpl(std::shared_ptr<EngineCore> core, SessionOptions options)
      : core_(std::move(core)), session_({&core_->memory}, core_->store, std::move(options)) {
    const std::lock_guard lock(core_->mutex);
    core_->sessions.insert(this);
  }

  ~ModelSessionImpl() override {
    {
      const std::lock_guard lock(core_->mutex);
      core_->sessions.erase(this);
    }
    session_.release();
    if (!model_) return;
    const std::lock_guard lock(core_->registration);
    unload_model(*model_, core_->store, core_->options.log);
  }

  Status load(const ModelOptions& options) {
    const std::lock_guard lock(core_->registration);
    SLUICE_ASSIGN(model_,
                  load_model({options.model, options.vae, options.clip_l}, *system_files(), core_->store, core_->options.log));
    if (options.load == Load::eager) {
      for (const ComponentId id : {model_->text, model_->denoiser, model_->decoder})
        SLUICE_TRY(core_->store.load(id, CancelToken{}, {}));
    }
    return {};
  }

  void on_idle() override {
    const std::unique_lock lock(using_, std::try_to_lock);
    if (lock) session_.forget_plans();
  }

  Result<PlanReport> plan(const Request& request) override {
    const std::lock_guard lock(using_);
    SLUICE_ASSIGN(const Settings settings, check_request(request, model_->rule));
    return plan_of(settings);
  }

  Result<Generated> generate(const Request& request, const ProgressFunction& progress, const CancelToken& cancel) override {
    const Running running(*core_);
    const std::lock_guard lock(using_);
    Stopwatch clock;
    const LogSink& log = core_->options.log;
    SLUICE_ASSIGN(const Settings settings, check_request(request, model_->rule));
    if (settings.request.cfg_scale == 0) log(LogLevel::warning, "cfg scale 0: the prompt is not used");
    if (settings.request.cfg_scale == 1 && !settings.request.negative_prompt.empty())
      log(LogLevel::warning, "cfg scale 1: the negative prompt is not used");
    core_->device->ledger().reset_peak();
    const Bytes read_before = core_->store.counters().bytes_read;
    const auto moves_before = core_->memory.counters();
    const int plans_before = session_.counters().plans_built;
    Generated out;
    SLUICE_ASSIGN(out.plan, plan_of(settings));
    TextToImage pipeline(*model_, core_->store, session_);
    SLUICE_ASSIGN(Drawn drawn, pipeline.draw(settings, progress, cancel));
    out.runs = std::move(drawn.runs);
    out.plans_built = session_.counters().plans_built - plans_before;
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
    const LedgerReport books = core_->device->ledger().report();
    const auto moves = core_->memory.counters();
    out.ledger_peak = books.peak;
    out.device_limit = books.limit.value_or(0);
    out.bytes_read = core_->store.counters().bytes_read - read_before;
    out.evictions = moves.evictions - moves_before.evictions;
    out.demotions = moves.demotions - moves_before.demotions;
    out.given_up = moves.given_up - moves_before.given_up;
    out.seconds = clock.seconds();
    return out;
  }

 private:
  /// The engine is not idle while one lives.
  class Running {
   public:
    explicit Running(EngineCore& core) : core_(core) {
      const std::lock_guard lock(core_.mutex);
      ++core_.running;
    }
    ~Running() {
      const std::lock_guard lock(core_.mutex);
      --core_.running;
      core_.idle = Stopwatch();
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    EngineCore& core_;
  };

  Result<PlanReport> plan_of(const Settings& settings) {
    SLUICE_TRY(session_.follow());
    SLUICE_ASSIGN(const auto specs, TextToImage(*model_, core_->store, session_).stages(settings));
    auto prepared = session_.prepare(specs);
    if (!prepared) {
      Error e = std::move(prepared).error();
      if (e.code == Code::over_budget && e.needed > 0) e.message = refusal(e, settings);
      return fail(std::move(e));
    }
    PlanReport report = plan_report(**prepared, core_->store, session_);
    report.width = settings.request.width;
    report.height = settings.request.height;
    return report;
  }

  std::string refusal(const Error& e, const Settings& s) const {
    return fmt::format(
        "{}x{} needs {} ({} bytes) on {}, the budget is {} ({} bytes): raise --device-budget to {} or lower --width, --height "
        "or --batch",
        s.request.width, s.request.height, format_bytes(e.needed), e.needed, core_->device->info().name,
        format_bytes(e.available), e.available, e.needed);
  }

  Result<std::string> hash_of_model(const CancelToken& cancel) {
    if (hash_.empty()) {
      SLUICE_ASSIGN(hash_, model_hash(*model_->file->file, cancel));
    }
    return hash_;
  }

  std::shared_ptr<EngineCore> core_;
  std::unique_ptr<LoadedModel> model_;
  Session session_;
  std::string hash_;
  std::mutex using_;  ///< held by whoever asks for something
};

}  // namespace

Result<std::unique_ptr<ModelSession>> open_model_session(std::shared_ptr<EngineCore> core, const ModelOptions& options) {
  SLUICE_ASSIGN(const Policy policy, parse_policy(options.policy));
  auto session_setup = session_options(*core, policy, options);
  auto session = std::make_unique<ModelSessionImpl>(std::move(core), std::move(session_setup));
  SLUICE_TRY(session->load(options));
  return session;
}

}  // namespace sluice
