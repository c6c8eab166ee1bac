#include <fmt/format.h>

#include <cstdio>

#include "cli/cache_folder.h"
#include "cli/commands.h"
#include "cli/log.h"
#include "cli/report_json.h"
#include "cli/report_text.h"

namespace sluice::cli {

Status plan(Settings settings) {
  SLUICE_TRY(check_together(settings));
  settings.engine.log = log_for(settings);
  settings.engine.cache_folder = cache_folder();
  SLUICE_ASSIGN(auto engine, Engine::open(settings.engine));
  SLUICE_ASSIGN(const auto report, engine->plan(settings.request));
  if (settings.json)
    fmt::print("{}\n", dump(to_json(report)));
  else if (!settings.quiet)
    fmt::print("{}", plan_text(report, settings.verbose));
  return {};
}

}  // namespace sluice::cli
