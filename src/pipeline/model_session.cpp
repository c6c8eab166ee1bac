#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/file_hash.h"
#include "pipeline/engine_core.h"
#include "pipeline/parameters.h"
#include "pipeline/plan_report.h"
#include "pipeline/text_to_image.h"
#include "residency/split_weights.h"

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
  options.fallback = core.fallback;
  options.follow = [&core] { return core.follow(); };
  return options;
}

std::vector<DeviceMemory*> memories_of(EngineCore& core) {
  std::vector<DeviceMemory*> memories;
  for (const auto& memory : core.memories) memories.push_back(memory.get());
  return memories;
}

class ModelSessionImpl final : public ModelSession, public IdleListener {
 public:
  ModelSessionImpl(std::shared_ptr<EngineCore> core, SessionOptions options)
      : core_(std::move(core)), session_(memories_of(*core_), core_->store, std::move(options)) {
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
    for (const auto& [component, device] : options.place)
      if (component != "text" && component != "denoiser" && component != "vae")
        return fail(
            Code::invalid_argument,
            fmt::format("--place {}={}: there is no such component; there are text, denoiser and vae", component, device));
    ModelPlaces places;
    SLUICE_ASSIGN(places.text, core_->places_for(options, "text"));
    SLUICE_ASSIGN(places.denoiser, core_->places_for(options, "denoiser"));
    SLUICE_ASSIGN(places.vae, core_->places_for(options, "vae"));
    SLUICE_TRY(spread_rows(options, places));
    SLUICE_ASSIGN(model_, load_model({options.model, options.vae, options.clip_l}, *system_files(), core_->store,
                                     core_->options.log, places));
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
    for (const auto& device : core_->devices) device->ledger().reset_peak();
    const Bytes read_before = core_->store.counters().bytes_read;
    const auto moves_before = moves();
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
    for (const DevicePlan& planned : out.plan.devices) {
      SLUICE_ASSIGN(const std::size_t device, core_->find(planned.device));
      const LedgerReport books = core_->devices[device]->ledger().report();
      out.peaks.push_back({planned.device, books.peak, books.limit.value_or(0)});
      if (planned.device != out.plan.device) continue;
      out.ledger_peak = books.peak;
      out.device_limit = books.limit.value_or(0);
    }
    out.bytes_read = core_->store.counters().bytes_read - read_before;
    const auto moved = moves();
    out.evictions = moved.evictions - moves_before.evictions;
    out.demotions = moved.demotions - moves_before.demotions;
    out.given_up = moved.given_up - moves_before.given_up;
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

  Status spread_rows(const ModelOptions& options, ModelPlaces& places) const {
    if (options.split == "blocks") return {};
    if (options.split != "rows")
      return fail(Code::invalid_argument, fmt::format("split '{}' is unknown: use blocks or rows", options.split));
    places.spread_rows = true;
    bool several = false;
    for (auto* list : {&places.text, &places.denoiser}) {
      // One device computes with all of it: nobody stands in for what it lacks.
      if (core_->fallback) std::erase(*list, *core_->fallback);
      several = several || list->size() > 1;
      if (list->size() < 2) continue;
      std::vector<SplitWeights::Member> members;
      for (const std::size_t d : *list) members.push_back({core_->devices[d].get(), d});
      if (auto can = SplitWeights::open(std::move(members), places.spread_from); !can)
        return fail(
            Code::invalid_argument,
            fmt::format("--split rows: {}: leave --split at blocks, which runs some blocks on each", can.error().message));
    }
    if (!several)
      return fail(Code::invalid_argument,
                  "--split rows spreads weights over several devices, and there is one: name more with --device, as "
                  "cuda0,cuda1, or leave --split at blocks");
    return {};
  }

  /// Of all devices together.
  DeviceMemory::Counters moves() const {
    DeviceMemory::Counters sum;
    for (const auto& memory : core_->memories) {
      const auto one = memory->counters();
      sum.evictions += one.evictions;
      sum.demotions += one.demotions;
      sum.given_up += one.given_up;
    }
    return sum;
  }

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
    const std::string& device = core_->devices[session_.refused_on()]->info().name;
    const bool several = core_->devices.size() - (core_->fallback ? 1 : 0) > 1;
    return fmt::format(
        "{}x{} needs {} ({} bytes) on {}, the budget is {} ({} bytes): raise --device-budget to {}{} or lower --width, "
        "--height "
        "or --batch",
        s.request.width, s.request.height, format_bytes(e.needed), e.needed, device, format_bytes(e.available), e.available,
        several ? device + "=" : "", e.needed);
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
