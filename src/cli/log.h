#pragma once

#include "cli/settings.h"

namespace sluice::cli {

/// Where the library's lines go: standard error, from `warning` up, from `debug` up with --verbose, errors alone with --quiet.
LogSink log_for(const Settings& settings);

}  // namespace sluice::cli
