#pragma once

#include <string>

#include "base/result.h"

namespace sluice::bench {

/// Prints one JSON line per figure that the design wants reached. Ratios come from this one run. Speed ratios of streaming are
/// in virtual time on the simulated device; those marked "real" are wall clock. Errors: those of the engine.
Status run_core(const std::string& model);

/// Seconds of one denoiser pass as one graph over the whole network on the CPU with one thread: median of `passes`, after one
/// unmeasured. 64 × 64 pixels' worth of latent, 77 tokens. Errors: those of loading; device_failed.
Result<double> whole_graph_step_s(const std::string& model, int passes);

}  // namespace sluice::bench
