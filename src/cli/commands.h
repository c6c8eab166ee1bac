#pragma once

#include <string>

#include "cli/settings.h"

namespace sluice::cli {

// Each command prints what it found and returns; errors are printed by whoever calls.

/// Draws and writes pictures. Nothing is written unless all of it succeeded, except when the disk gives out between two
/// pictures.
Status generate(Settings settings);
/// Prints the plan that `generate` would follow.
Status plan(Settings settings);
Status inspect_file(const std::string& path, bool json);

struct DevicesCommand {
  bool measure = false, json = false;
  std::string device;  ///< one alone; empty: all
  std::string file;    ///< whose disk is timed too; empty: none
};
/// Prints what there is to run on; with `measure`, what it does, which is kept for later runs.
Status show_devices(const DevicesCommand& command);

}  // namespace sluice::cli
