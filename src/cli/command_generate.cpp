#include <fmt/format.h>

#include <cstdio>

#include "cli/cache_folder.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/log.h"
#include "cli/output_path.h"
#include "cli/progress_bar.h"
#include "cli/report_json.h"
#include "cli/report_text.h"

namespace sluice::cli {

Status generate(Settings settings) {
  if (!settings.prompt_given)
    return fail(Code::invalid_argument, "no prompt given: add --prompt TEXT (an empty one is --prompt '')");
  SLUICE_TRY(check_together(settings));
  SLUICE_TRY(check_output(settings.output));
  const CancelToken cancel;
  cancel_on_interrupt(cancel);
  settings.engine.log = log_for(settings);
  settings.engine.cache_folder = cache_folder();

  Generated generated;
  {
    ProgressBar bar(!settings.quiet && !settings.json);
    SLUICE_ASSIGN(auto engine, Engine::open(settings.engine));
    SLUICE_ASSIGN(generated,
                  engine->generate(settings.request, [&bar](const Progress& progress) { bar.show(progress); }, cancel));
  }
  if (generated.pictures.empty()) return fail(Code::device_failed, "the engine returned no picture");

  const auto files = output_paths(settings.output, generated.pictures.front().seed, generated.pictures.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (cancel.cancelled()) return fail(Code::cancelled, fmt::format("cancelled before {} was written", files[i]));
    SLUICE_TRY(write_picture(files[i], generated.pictures[i]));
  }
  if (settings.json) {
    fmt::print("{}\n", dump(to_json(generated, files)));
  } else if (!settings.quiet) {
    for (std::size_t i = 0; i < files.size(); ++i) fmt::print("{} (seed {})\n", files[i], generated.pictures[i].seed);
    if (settings.verbose) fmt::print("{}", plan_text(generated.plan, true));
    fmt::print("{}", memory_table(generated));
    fmt::print("  {:.2f} s in all\n", generated.seconds);
  }
  return {};
}

}  // namespace sluice::cli
