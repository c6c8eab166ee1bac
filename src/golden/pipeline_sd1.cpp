#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "golden/array.h"
#include "golden/network.h"
#include "pipeline/plan_report.h"
#include "pipeline/text_to_image.h"

namespace sluice::golden {
namespace {

/// What a request leaves behind, by the oracle's names.
using Trace = std::map<std::string, std::vector<float>>;

Result<Request> request_of(const nlohmann::json& params) {
  Request request;
  request.prompt = params.at("prompt");
  request.negative_prompt = params.value("negative_prompt", std::string{});
  request.width = params.at("width");
  request.height = params.at("height");
  request.steps = params.at("steps");
  request.cfg_scale = params.at("cfg_scale");
  request.sampler = params.at("sampler");
  request.schedule = params.value("schedule", std::string("discrete"));
  request.clip_skip = params.value("clip_skip", 1);
  request.seed = params.at("seed");
  const auto rng = params.at("noise_rng").get<std::string>();
  if (!rng.starts_with("philox")) return fail(Code::unsupported, "no random stream " + rng);
  request.rng = "cuda";
  return request;
}

void append(std::vector<float>& to, std::span<const float> values) { to.insert(to.end(), values.begin(), values.end()); }

Result<Trace> draw(LoadedModel& model, Rig& rig, const Settings& settings) {
  Trace trace;
  Watch watch;
  watch.context = [&trace](std::span<const float> cond, std::span<const float> uncond) {
    append(trace["cond"], cond);
    append(trace["uncond"], uncond);
  };
  watch.outputs = [&trace](int, int step, std::span<const float> cond, std::span<const float> uncond) {
    if (step != 0) return;
    append(trace["first_eps_cond"], cond);
    append(trace["first_eps_uncond"], uncond);
  };
  watch.step = [&trace](int, int, std::span<const float> latent) { append(trace["latents"], latent); };
  watch.decoded = [&trace](int, std::span<const float> pixels) { append(trace["decoded"], pixels); };
  SLUICE_ASSIGN(const auto drawn, TextToImage(model, *rig.store, *rig.session).draw(settings, {}, CancelToken{}, watch));
  append(trace["final_latent"], drawn.latents.at(0));
  const auto to_01 = [](float v) { return std::clamp(v * 0.5f + 0.5f, 0.0f, 1.0f); };
  std::transform(drawn.pixels.at(0).begin(), drawn.pixels.at(0).end(), std::back_inserter(trace["image_01"]), to_01);
  return trace;
}

bool same_bits(const Trace& a, const Trace& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.size() == y.second.size() &&
           std::memcmp(x.second.data(), y.second.data(), x.second.size() * sizeof(float)) == 0;
  });
}

}  // namespace

Result<std::vector<Measured>> run_pipeline_sd1(const Case& one, const Setup& setup) {
  SLUICE_ASSIGN(const auto io, one.io());
  for (const char* input : {"init_image", "mask"}) {
    if (io->find(input)) return fail(Code::unsupported, fmt::format("no runner for {}", input));
  }
  SLUICE_ASSIGN(const auto request, request_of(one.meta.at("params")));
  std::unique_ptr<LoadedModel> model;  // declared first: store and session look at its networks to their end
  SLUICE_ASSIGN(auto rig, open_rig(setup));
  const auto places = rig.places();
  SLUICE_ASSIGN(model,
                load_model(one.path(one.meta.at("weights").at(0)), *system_files(), *rig.store, {}, {places, places, places}));
  SLUICE_ASSIGN(const auto settings, check_request(request, model->rule));
  SLUICE_ASSIGN(const auto specs, TextToImage(*model, *rig.store, *rig.session).stages(settings));
  Trace first;
  SLUICE_ASSIGN(const auto budgets, budgets_for(setup, rig, specs));
  for (const auto budget : budgets) {
    rig.set_budget(budget);
    SLUICE_ASSIGN(auto trace, draw(*model, rig, settings));
    SLUICE_TRY(rig.check_peaks(budget));
    if (first.empty())
      first = std::move(trace);
    else if (!same_bits(first, trace))
      return fail(Code::device_failed, fmt::format("another picture with a budget of {} bytes", *budget));
  }
  std::vector<Measured> out;
  for (const auto& entry : one.meta.at("outputs").items()) {
    const auto got = first.find(entry.key());
    if (got != first.end())
      out.push_back(measure(*io, entry.key(), got->second, tolerance(Work::pipeline, one.weight_dtype(), setup.backend())));
  }
  return out;
}

}  // namespace sluice::golden
