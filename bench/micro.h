#pragma once

namespace sluice::bench {

/// Runs the google-benchmark programs of the parts; the arguments are google-benchmark's own. Returns an exit code.
int run_micro(int argc, char** argv);

}  // namespace sluice::bench
