#include "pipeline/text_to_image.h"

#include <fmt/format.h>

#include <algorithm>

#include "sampling/parametrisation.h"

namespace sluice {
namespace {

enum StageIndex : std::size_t { kEncode, kDenoise, kDecode };
constexpr const char* kStageNames[] = {"encode", "denoise", "decode"};
// Shorter windows make the link's rate jump with every block.
constexpr double kRateWindow_s = 0.5;

StageRun run_of(const char* name, const SweepStats& stats) {
  StageRun run;
  run.name = name;
  run.sweeps = static_cast<int>(stats.sweep_s.size());
  for (const double s : stats.sweep_s) run.seconds += s;
  std::vector<double> steady(stats.sweep_s.begin() + (stats.sweep_s.size() > 1 ? 1 : 0), stats.sweep_s.end());
  if (!steady.empty()) {
    const auto middle = steady.begin() + static_cast<std::ptrdiff_t>(steady.size() / 2);
    std::nth_element(steady.begin(), middle, steady.end());
    run.step_s = *middle;
  }
  run.wait_s = stats.wait_s;
  run.copied = stats.copied_total;
  run.copied_steady = stats.copied.empty() ? 0 : stats.copied.back();
  return run;
}

Status check_start_noise(const Settings& s) {
  if (s.start_noise.empty()) return {};
  const auto elements = static_cast<std::size_t>(s.latent_width * s.latent_height * s.latent_channels);
  const auto images = static_cast<std::size_t>(s.request.batch);
  if (s.start_noise.size() == images &&
      std::all_of(s.start_noise.begin(), s.start_noise.end(), [&](const auto& noise) { return noise.size() == elements; }))
    return {};
  return fail(Code::invalid_argument, fmt::format("start noise must be {} times {} values", images, elements));
}

}  // namespace

TextToImage::Tokens TextToImage::tokens(const Settings& s) const {
  const auto& tokenizer = ClipTokenizer::standard();
  Tokens t;
  if (s.passes.cond) t.cond = tokenize_prompt(tokenizer, s.request.prompt);
  if (s.passes.uncond) t.uncond = tokenize_prompt(tokenizer, s.request.negative_prompt);
  // Both have the same number of rows, so that their lanes have one shape.
  const std::size_t rows = std::max(t.cond.count(), t.uncond.count());
  if (s.passes.cond) t.cond.pad_to_chunks(rows);
  if (s.passes.uncond) t.uncond.pad_to_chunks(rows);
  return t;
}

Result<std::vector<StageSpec>> TextToImage::stages(const Settings& s) const {
  const Tokens t = tokens(s);
  const std::size_t chunks = t.cond.count() + t.uncond.count();
  const auto row = static_cast<std::int64_t>(TokenChunks::kRow);
  const std::int64_t rows = static_cast<std::int64_t>(std::max(t.cond.count(), t.uncond.count()));
  const auto& parts = model_.parts;
  const LaneShape text = lane_shape({{parts.text.config.hidden, row, 1, 1}});
  // Parallel to the model's declaration of its inputs.
  const auto shape_for = [&](const Input& input) -> Shape {
    const auto& v = parts.denoiser.values;
    if (input.value == v.x) return {s.latent_width, s.latent_height, parts.denoiser.config.in_channels, 1};
    if (input.value == v.t_emb) return {parts.denoiser.config.model_channels, 1, 1, 1};
    return {parts.denoiser.config.context, rows * row, 1, 1};
  };
  LaneShape denoiser;
  for (const auto& input : parts.denoiser.component.model->inputs) denoiser.inputs.push_back(shape_for(input));
  const LaneShape latent = lane_shape({{s.latent_width, s.latent_height, s.latent_channels, 1}});
  const auto images = static_cast<std::size_t>(s.request.batch);
  return std::vector<StageSpec>{
      {"encode", model_.text, std::vector<LaneShape>(chunks, text), 1},
      {"denoise", model_.denoiser, std::vector<LaneShape>(images * static_cast<std::size_t>(s.passes.count()), denoiser),
       s.request.steps},
      {"decode", model_.decoder, std::vector<LaneShape>(images, latent), 1},
  };
}

void TextToImage::report(std::size_t stage, int done, int total, double part, const SweepRunner* runner) {
  if (!progress_) return;
  Progress p{.stage = kStageNames[stage], .done = done, .total = total, .elapsed_s = clock_.seconds()};
  // Stages differ in length; what the plan expects of them says how much of the request is done.
  p.fraction = share_[stage] * part;
  for (std::size_t s = 0; s < stage; ++s) p.fraction += share_[s];
  if (p.fraction > 0) p.eta_s = p.elapsed_s * (1 - p.fraction) / p.fraction;
  if (runner && p.elapsed_s - seen_at_s_ >= kRateWindow_s) {
    const Bytes copied = runner->copied();
    link_rate_ = copied >= seen_copied_ ? static_cast<double>(copied - seen_copied_) / (p.elapsed_s - seen_at_s_) : 0;
    seen_copied_ = copied;
    seen_at_s_ = p.elapsed_s;
  }
  p.link_bytes_per_s = link_rate_;
  progress_(p);
}

Result<Drawn> TextToImage::draw(const Settings& settings, const ProgressFunction& progress, const CancelToken& cancel,
                                const Watch& watch) {
  progress_ = progress;
  clock_ = Stopwatch();
  seen_copied_ = 0;
  seen_at_s_ = link_rate_ = 0;
  SLUICE_TRY(check_start_noise(settings));
  SLUICE_TRY(store_.check_sources());
  SLUICE_ASSIGN(const auto specs, stages(settings));
  SLUICE_TRY(session_.follow());
  Drawn drawn;
  drawn.runs.resize(3);
  const auto make = [&]() -> Status {
    SLUICE_ASSIGN(Prepared * prepared, session_.prepare(specs));
    auto context = remembered(settings);
    std::vector<bool> skip(specs.size(), false);
    skip[kEncode] = context.has_value();
    SLUICE_TRY(session_.bind(*prepared, cancel, skip));
    share_.assign(specs.size(), 0);
    double all = 0;
    for (std::size_t s = 0; s < specs.size(); ++s) {
      if (skip[s]) continue;
      const StageCost& cost = prepared->stages[s].cost();
      for (const auto& block : cost.blocks) share_[s] += block.compute_s * cost.sweeps;
      all += share_[s];
    }
    for (double& s : share_) s = all > 0 ? s / all : 1.0 / static_cast<double>(share_.size());
    drawn.runs[kEncode].name = kStageNames[kEncode];
    if (!context) {
      SLUICE_ASSIGN(context, encode(*prepared, settings, cancel, drawn.runs[kEncode]));
      remember(settings, *context);
    }
    if (watch.context) watch.context(context->cond, context->uncond);
    SLUICE_TRY(denoise(prepared, settings, *context, watch, cancel, drawn, drawn.runs[kDenoise]));
    return decode(*prepared, watch, cancel, drawn, drawn.runs[kDecode]);
  };
  const Status done = make();
  session_.finish(done.has_value());
  if (!done) return fail(done.error());
  return drawn;
}

namespace {
/// Everything that a prompt's embedding depends on.
std::string context_name(ComponentId text, const Request& r, const std::string& prompt, std::size_t chunks) {
  return fmt::format("{} {} {} {} {}", text, r.clip_skip, r.emphasis, chunks, prompt);
}
}  // namespace

std::optional<TextToImage::Context> TextToImage::remembered(const Settings& s) {
  const Tokens t = tokens(s);
  Context context;
  const auto recall = [&](bool needed, const std::string& prompt, std::size_t chunks, std::vector<float>& out) {
    if (!needed) return true;
    const auto* values = session_.cache().find(context_name(model_.text, s.request, prompt, chunks));
    if (values) out = *values;
    return values != nullptr;
  };
  if (!recall(s.passes.cond, s.request.prompt, t.cond.count(), context.cond)) return std::nullopt;
  if (!recall(s.passes.uncond, s.request.negative_prompt, t.uncond.count(), context.uncond)) return std::nullopt;
  return context;
}

void TextToImage::remember(const Settings& s, const Context& context) {
  const Tokens t = tokens(s);
  HostCache& cache = session_.cache();
  if (s.passes.cond) cache.put(context_name(model_.text, s.request, s.request.prompt, t.cond.count()), context.cond);
  if (s.passes.uncond)
    cache.put(context_name(model_.text, s.request, s.request.negative_prompt, t.uncond.count()), context.uncond);
}

Result<TextToImage::Context> TextToImage::encode(Prepared& prepared, const Settings& s, const CancelToken& cancel,
                                                 StageRun& run) {
  Stage& stage = prepared.stages[kEncode];
  const Tokens t = tokens(s);
  std::vector<LaneInputs> inputs;
  const auto width = static_cast<std::size_t>(model_.parts.text.tokens.width);
  const auto gather = [&](const TokenChunks& chunks) -> Status {
    for (const auto& ids : chunks.ids) {
      std::vector<float> rows(width * TokenChunks::kRow);
      SLUICE_TRY(WeightStore::gather_rows(model_.token_table(), ids, rows));
      inputs.push_back({std::move(rows)});
    }
    return {};
  };
  SLUICE_TRY(gather(t.cond));
  SLUICE_TRY(gather(t.uncond));
  SLUICE_ASSIGN(const auto runner, session_.begin(prepared, kEncode, cancel));
  const int blocks = static_cast<int>(stage.blocks());
  SLUICE_ASSIGN(const auto outputs, sweep_once(*runner, stage, inputs, true, [&](int done) {
                  report(kEncode, done, blocks, static_cast<double>(done) / blocks, runner.get());
                }));
  run = run_of("encode", runner->stats());

  const Value wanted = s.request.clip_skip == 2 ? *model_.parts.text.values.skipped_ln : *model_.parts.text.values.last_hidden;
  const auto& order = stage.model().outputs;
  const auto place = static_cast<std::size_t>(std::find(order.begin(), order.end(), wanted) - order.begin());
  Context context;
  const auto join = [&](const TokenChunks& chunks, std::size_t first, std::vector<float>& out) -> Status {
    for (std::size_t c = 0; c < chunks.count(); ++c)
      out.insert(out.end(), outputs[first + c][place].begin(), outputs[first + c][place].end());
    return apply_emphasis(out, chunks.flat_weights(), s.emphasis);
  };
  if (s.passes.cond) SLUICE_TRY(join(t.cond, 0, context.cond));
  if (s.passes.uncond) SLUICE_TRY(join(t.uncond, t.cond.count(), context.uncond));
  return context;
}

Status TextToImage::denoise(Prepared*& prepared, const Settings& s, const Context& context, const Watch& watch,
                            const CancelToken& cancel, Drawn& drawn, StageRun& run) {
  const NoiseTable& table = NoiseTable::stable_diffusion();
  SLUICE_ASSIGN(const Schedule schedule, make_schedule(s.schedule, table, s.request.steps));
  const auto images = static_cast<std::size_t>(s.request.batch);
  const auto passes = static_cast<std::size_t>(s.passes.count());
  const auto elements = static_cast<std::size_t>(s.latent_width * s.latent_height * s.latent_channels);

  std::vector<std::unique_ptr<RandomStream>> streams;
  std::vector<std::unique_ptr<Sampler>> samplers;
  for (std::size_t i = 0; i < images; ++i) {
    streams.push_back(make_random_stream(s.rng, image_seed(static_cast<std::uint64_t>(s.request.seed), i)));
    std::vector<float> start(elements);
    streams[i]->normal(start);
    if (!s.start_noise.empty()) start = s.start_noise[i];
    for (float& x : start) x = static_cast<float>(x * schedule.initial_scale);
    RandomStream* stream = streams[i].get();
    SLUICE_ASSIGN(auto sampler, make_sampler({s.sampler, default_eta(s.sampler)}, schedule.sigmas, std::move(start),
                                             [stream](int, std::span<float> out) { stream->normal(out); }));
    samplers.push_back(std::move(sampler));
  }

  // Lanes: image by image, conditional before unconditional.
  const auto& values = model_.parts.denoiser.values;
  const auto& inputs = model_.parts.denoiser.component.model->inputs;
  std::vector<LaneInputs> lanes(images * passes, LaneInputs(inputs.size()));
  const auto slot = [&](Value v) {
    return static_cast<std::size_t>(std::find_if(inputs.begin(), inputs.end(), [&](const Input& i) { return i.value == v; }) -
                                    inputs.begin());
  };
  const std::size_t x_slot = slot(values.x), t_slot = slot(values.t_emb), c_slot = slot(values.context);
  for (std::size_t i = 0; i < images; ++i) {
    std::size_t lane = i * passes;
    if (s.passes.cond) lanes[lane++][c_slot] = context.cond;
    if (s.passes.uncond) lanes[lane][c_slot] = context.uncond;
  }
  for (auto& lane : lanes) {
    lane[x_slot].resize(elements);
    lane[t_slot].resize(static_cast<std::size_t>(model_.parts.denoiser.config.model_channels));
  }

  SLUICE_ASSIGN(auto runner, session_.begin(*prepared, kDenoise, cancel));
  const int blocks = static_cast<int>(prepared->stages[kDenoise].blocks());
  SweepStats stats;        // of the runners before this one
  bool first = true;       // the lanes' constants are not there yet
  bool keep_plan = false;  // the budget is too small to plan anew: what is taken is kept
  int sweeps = 0;
  std::vector<float> guided(elements);
  report(kDenoise, 0, s.request.steps, 0, runner.get());
  while (!samplers[0]->done()) {
    for (std::size_t i = 0; i < images; ++i) {
      const auto query = samplers[i]->next();
      const auto step = static_cast<std::size_t>(query.step);
      const double t = query.sigma == schedule.sigmas[step] ? schedule.timesteps[step] : table.sigma_to_t(query.sigma);
      for (std::size_t p = 0; p < passes; ++p) {
        scale_input(query.x, query.sigma, lanes[i * passes + p][x_slot]);
        timestep_embedding(t, lanes[i * passes + p][t_slot]);
      }
    }
    SLUICE_TRY(session_.follow());
    if (sweeps > 0 && !keep_plan && session_.outdated(*prepared)) {
      // All that crosses a sweep's end is in host memory, so the rest may run by another plan.
      stats.append(runner->stats());
      runner.reset();
      session_.end();
      auto another = session_.prepare(prepared->specs);
      if (another) {
        SLUICE_TRY(session_.bind(**another, cancel, {true, false, false}));
        prepared = *another;
      } else if (another.error().code == Code::over_budget) {
        keep_plan = true;
      } else {
        return fail(std::move(another).error());
      }
      SLUICE_ASSIGN(runner, session_.begin(*prepared, kDenoise, cancel, s.request.steps - sweeps));
      first = true;
    }
    auto outputs = sweep_once(*runner, prepared->stages[kDenoise], lanes, first, [&](int done) {
      report(kDenoise, done == blocks ? sweeps + 1 : sweeps, s.request.steps,
             (sweeps + static_cast<double>(done) / blocks) / s.request.steps, runner.get());
    });
    if (!outputs) return fail_while(fmt::format("step {}", sweeps + 1), std::move(outputs).error());
    first = false;
    if (sweeps == 0) session_.check_backends(*prepared);
    for (std::size_t i = 0; i < images; ++i) {
      const auto query = samplers[i]->next();
      const std::vector<float>* cond = s.passes.cond ? &(*outputs)[i * passes][0] : nullptr;
      const std::vector<float>* uncond = s.passes.uncond ? &(*outputs)[i * passes + passes - 1][0] : nullptr;
      if (watch.outputs)
        watch.outputs(static_cast<int>(i), query.step, cond ? std::span<const float>(*cond) : std::span<const float>{},
                      uncond ? std::span<const float>(*uncond) : std::span<const float>{});
      apply_guidance(cond ? *cond : *uncond, uncond ? *uncond : *cond, s.request.cfg_scale, guided);
      to_denoised(Prediction::eps, query.x, guided, query.sigma, guided);
      const int step = query.step;
      samplers[i]->advance(guided);
      if (watch.step) watch.step(static_cast<int>(i), step, samplers[i]->latent());
    }
    ++sweeps;
  }
  for (auto& sampler : samplers) drawn.latents.emplace_back(sampler->latent().begin(), sampler->latent().end());
  stats.append(runner->stats());
  run = run_of("denoise", stats);
  return {};
}

Status TextToImage::decode(Prepared& prepared, const Watch& watch, const CancelToken& cancel, Drawn& drawn, StageRun& run) {
  Stage& stage = prepared.stages[kDecode];
  std::vector<LaneInputs> lanes;
  for (const auto& latent : drawn.latents) {
    std::vector<float> unscaled(latent.size());
    std::transform(latent.begin(), latent.end(), unscaled.begin(),
                   [&](float x) { return static_cast<float>(x / model_.parts.latent_scale); });
    lanes.push_back({std::move(unscaled)});
  }
  SLUICE_ASSIGN(const auto runner, session_.begin(prepared, kDecode, cancel));
  const int blocks = static_cast<int>(stage.blocks());
  SLUICE_ASSIGN(auto outputs, sweep_once(*runner, stage, lanes, true, [&](int done) {
                  report(kDecode, done, blocks, static_cast<double>(done) / blocks, runner.get());
                }));
  for (auto& lane : outputs) drawn.pixels.push_back(std::move(lane[0]));
  run = run_of("decode", runner->stats());
  for (std::size_t i = 0; i < drawn.pixels.size(); ++i) {
    if (watch.decoded) watch.decoded(static_cast<int>(i), drawn.pixels[i]);
  }
  return {};
}

}  // namespace sluice
