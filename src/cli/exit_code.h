#pragma once

#include "base/result.h"

namespace sluice::cli {

/// What the program returns to the shell.
enum class Exit {
  ok = 0,
  usage = 2,           ///< the command line asks for something that cannot be
  does_not_fit = 3,    ///< refused before the first step: the budget is below the smallest that works
  bad_file = 4,        ///< a file is missing, broken, of an unknown kind or cannot be written
  device_failure = 5,  ///< the device, its driver or the machine's memory gave out
  cancelled = 130,     ///< Ctrl-C, as shells report it
};

/// The exit code of an error.
Exit exit_code(Code code);

/// The error as one or two sentences for standard error: what happened, and what to do about it.
std::string explain(const Error& error);

}  // namespace sluice::cli
