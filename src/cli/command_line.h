#pragma once

namespace sluice::cli {

/// Parses the arguments, runs the command, prints errors (as text on standard error, or as JSON where --json is among the
/// arguments). Returns the exit code. Nothing is thrown: what other libraries throw ends as a device failure.
int run(int argc, char** argv);

}  // namespace sluice::cli
