#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "golden/case.h"
#include "golden/compare.h"
#include "golden/tolerance.h"

namespace sluice::golden {

/// How networks are to be run.
struct Setup {
  std::string device = "cpu";
  std::optional<Bytes> budget;  ///< none: unlimited
  bool sweep = false;  ///< eight budgets from the smallest that works to the full size, each of which must agree bit for bit
  /// The backend of the device, or of the one of several ("vulkan0,cpu:threads=1") that computes least exactly.
  std::string backend() const;
};

/// One output, measured.
struct Measured {
  std::string output;
  Difference difference;
  Tolerance allowed;
  std::string problem;  ///< why there is nothing to compare; then it has failed
  std::string note;     ///< printed behind the figures

  bool passed() const { return problem.empty() && allowed.allows(difference); }
};

/// `got` against the tensor `output` of the case's file; a missing tensor is a problem.
Measured measure(const TensorFile& io, const std::string& output, std::span<const float> got, const Tolerance& allowed);
/// An output that cannot be computed.
Measured unknown(const std::string& output, std::string problem);

/// A case whose outputs stand each for itself: `run` for every output named in case.json; an error of its is a failed line.
std::vector<Measured> each_output(const Case& one, const std::function<Result<Measured>(const std::string& output)>& run);

/// Computes a case's outputs. Errors end the case as failed.
using Runner = Result<std::vector<Measured>> (*)(const Case&, const Setup&);

/// The runner for a case, chosen by family and `run`; nullptr when there is none.
Runner find_runner(const Case& one);

// The families, one file each.
Result<std::vector<Measured>> run_clip_tokenizer(const Case&, const Setup&);
Result<std::vector<Measured>> run_samplers(const Case&, const Setup&);
Result<std::vector<Measured>> run_schedules(const Case&, const Setup&);
Result<std::vector<Measured>> run_random(const Case&, const Setup&);
Result<std::vector<Measured>> run_conversions(const Case&, const Setup&);
Result<std::vector<Measured>> run_guidance(const Case&, const Setup&);
Result<std::vector<Measured>> run_gguf_types(const Case&, const Setup&);
Result<std::vector<Measured>> run_safetensors_files(const Case&, const Setup&);
Result<std::vector<Measured>> run_clip_text(const Case&, const Setup&);
Result<std::vector<Measured>> run_unet(const Case&, const Setup&);
Result<std::vector<Measured>> run_vae(const Case&, const Setup&);
Result<std::vector<Measured>> run_pipeline_sd1(const Case&, const Setup&);

}  // namespace sluice::golden
