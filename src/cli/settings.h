#pragma once

#include <string>

#include "sluice/engine.h"

namespace sluice::cli {

/// Everything a command line can say about a request.
struct Settings {
  EngineOptions engine;
  Request request;
  std::string output;  ///< empty: sluice-<seed>.png in the current folder
  bool prompt_given = false;
  bool json = false;     ///< one JSON object on standard output, nothing else
  bool quiet = false;    ///< only errors
  bool verbose = false;  ///< every block of a plan, and the library's log
};

/// What follows from several options together. Errors: invalid_argument, naming the options that contradict each other or the
/// one that is missing.
Status check_together(const Settings& settings);

}  // namespace sluice::cli
