#include "golden/runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "golden/array.h"
#include "golden/glob.h"

namespace sluice::golden {

std::string Setup::backend() const {
  std::string first;
  for (std::size_t at = 0; at <= device.size();) {
    const std::size_t end = std::min(device.find(',', at), device.size());
    const std::string part = device.substr(at, end - at);
    at = end + 1;
    const std::size_t colon = part.find(':');
    if (colon == std::string::npos && part.find('=') != std::string::npos) continue;  // an option of the one before
    const std::string name = part.substr(0, colon);
    if (!computes_in_f32(name)) return name;
    if (first.empty()) first = name;
  }
  return first;
}

Measured measure(const TensorFile& io, const std::string& output, std::span<const float> got, const Tolerance& allowed) {
  const auto want = read_array(io, output);
  if (!want) return unknown(output, want.error().message);
  if (got.size() != want->values.size())
    return unknown(output, fmt::format("has {} values, expected {}", got.size(), want->values.size()));
  return {output, compare(got, want->values), allowed, {}, {}};
}

Measured unknown(const std::string& output, std::string problem) { return {output, {}, {}, std::move(problem), {}}; }

std::vector<Measured> each_output(const Case& one, const std::function<Result<Measured>(const std::string& output)>& run) {
  std::vector<Measured> out;
  for (const auto& entry : one.meta.at("outputs").items()) {
    auto result = run(entry.key());
    out.push_back(result ? *std::move(result) : unknown(entry.key(), result.error().message));
  }
  return out;
}

namespace {

struct Entry {
  const char* cases;  ///< pattern over family/case
  const char* run;    ///< `run` of case.json
  Runner runner;
};

constexpr Entry kRunners[] = {
    {"tokenizer/clip*", "clip_tokenize", run_clip_tokenizer},
    {"sampling/*", "samplers", run_samplers},
    {"sampling/*", "schedules", run_schedules},
    {"sampling/*", "random", run_random},
    {"sampling/*", "conversions", run_conversions},
    {"sampling/*", "guidance", run_guidance},
    {"gguf/types*", "gguf_dequantize", run_gguf_types},
    {"safetensors/*", "load_safetensors", run_safetensors_files},
    {"clip_text/clip_l*", "clip_text_encode", run_clip_text},
    {"unet/sd1*", "unet_forward", run_unet},
    {"vae/sd1*", "vae", run_vae},
    {"pipeline/sd1*", "pipeline_sd1", run_pipeline_sd1},
};

}  // namespace

Runner find_runner(const Case& one) {
  const auto run = one.meta.value("run", std::string{});
  for (const auto& entry : kRunners) {
    if (run == entry.run && glob_match(entry.cases, one.id())) return entry.runner;
  }
  return nullptr;
}

}  // namespace sluice::golden
