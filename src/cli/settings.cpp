#include "cli/settings.h"

namespace sluice::cli {

Status check_together(const Settings& settings) {
  if (settings.quiet && settings.verbose)
    return fail(Code::invalid_argument, "--quiet and --verbose contradict each other: leave one out");
  if (settings.engine.model.empty()) return fail(Code::invalid_argument, "no model given: add --model FILE");
  return {};
}

}  // namespace sluice::cli
