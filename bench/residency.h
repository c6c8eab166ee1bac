#pragma once

#include <string>

#include "base/result.h"

namespace sluice::bench {

/// Prints one JSON line per request of each scenario: plain, decode pressure, second request, two denoisers, outside pressure.
/// On the simulated device in virtual time, so every figure but wall_s repeats. Errors: those of the engine.
Status run_residency(const std::string& model);

/// Draws what lies on the simulated device while two requests run under decode pressure, as an SVG file. Errors: those of the
/// engine; io.
Status draw_residency(const std::string& model, const std::string& picture);

}  // namespace sluice::bench
