#include "pipeline/parameters.h"

#include <fmt/format.h>

namespace sluice {
namespace {

// The names users of other tools search for.
const char* customary_sampler(SamplerKind kind) {
  switch (kind) {
    case SamplerKind::euler: return "Euler";
    case SamplerKind::euler_a: return "Euler a";
    case SamplerKind::ddim: return "DDIM";
    case SamplerKind::dpmpp_2m: return "DPM++ 2M";
  }
  return "";
}

const char* customary_schedule(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::discrete: return "Discrete";
    case ScheduleKind::leading: return "Leading";
    case ScheduleKind::karras: return "Karras";
  }
  return "";
}

}  // namespace

std::string parameters_text(const Settings& s, std::int64_t seed, const std::string& model_name, const std::string& model_hash,
                            std::uint64_t variants) {
  std::string text = s.request.prompt + "\n";
  if (!s.request.negative_prompt.empty()) text += fmt::format("Negative prompt: {}\n", s.request.negative_prompt);
  text +=
      fmt::format("Steps: {}, Sampler: {}, Schedule type: {}, CFG scale: {}, Seed: {}, Size: {}x{}, Model hash: {}, Model: {}",
                  s.request.steps, customary_sampler(s.sampler), customary_schedule(s.schedule), s.request.cfg_scale, seed,
                  s.request.width, s.request.height, model_hash, model_name);
  if (s.request.clip_skip != 1) text += fmt::format(", Clip skip: {}", s.request.clip_skip);
  if (s.emphasis == Emphasis::none) text += ", Emphasis: No norm";
  text += fmt::format(", RNG: {}, Variants: {:016x}, Version: sluice", s.rng == RandomKind::cuda ? "NV" : "CPU", variants);
  return text;
}

}  // namespace sluice
