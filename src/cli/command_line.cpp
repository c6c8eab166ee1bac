#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <new>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/options.h"
#include "cli/report_json.h"

namespace sluice::cli {
namespace {

struct Parsed {
  Settings settings;
  std::string file;
  DevicesCommand devices;
  bool json = false;
};

void add_table(CLI::App& app, Parsed& parsed) {
  for (const auto& option : options()) {
    const auto names = option.letter ? fmt::format("-{},--{}", option.letter, option.name) : "--" + option.name;
    // The callback turns our errors into CLI11's own, so that they are usage errors like any other.
    const auto take = [&option, &parsed](const std::string& text) {
      if (auto status = option.set(parsed.settings, text); !status) throw CLI::ValidationError(status.error().message);
    };
    auto help = option.help;
    if (!option.fallback.empty() && option.type != "flag") help += fmt::format(" [{}]", option.fallback);
    if (option.type == "flag") {
      app.add_flag_function(names, [take](std::int64_t) { take({}); }, help)->group(option.group);
    } else {
      app.add_option_function<std::string>(names, take, help)
          ->type_name(option.unit.empty() ? option.type : fmt::format("{}({})", option.type, option.unit))
          ->group(option.group)
          ->multi_option_policy(CLI::MultiOptionPolicy::Throw);
    }
  }
}

int report(const Error& error, bool json) {
  if (json) fmt::print("{}\n", dump(to_json(error)));
  fmt::print(stderr, "sluice: {}\n", explain(error));
  return static_cast<int>(exit_code(error.code));
}

int parse_and_run(int argc, char** argv) {
  CLI::App app(
      "sluice draws pictures with diffusion models larger than the device's memory.\n"
      "Exit codes: 0 done, 2 usage, 3 does not fit, 4 bad file, 5 device failure, 130 cancelled.",
      "sluice");
  app.require_subcommand(1);
  app.set_version_flag("--version", "sluice " SLUICE_VERSION);
  Parsed parsed;
  Status status;

  auto* draw = app.add_subcommand("generate", "draw a picture");
  add_table(*draw, parsed);
  auto* show =
      app.add_subcommand("plan", "what `generate` would keep and copy, and the smallest budget that works; same arguments");
  add_table(*show, parsed);
  auto* look = app.add_subcommand("inspect", "what is in a checkpoint; reads its header only");
  look->add_option("file", parsed.file, "safetensors or GGUF")->required();
  look->add_flag("--json", parsed.json, "one JSON object on standard output");
  auto* list = app.add_subcommand("devices", "what this build can run on");
  list->add_flag("--json", parsed.json, "one JSON object on standard output");
  list->add_flag("--measure", parsed.devices.measure,
                 "measure buffers, rates and weight types; takes seconds, is kept for later runs");
  list->add_option("--device", parsed.devices.device, "this one alone, as for generate: cpu:threads=2, sim:memory=24MiB,…");
  list->add_option("--file", parsed.devices.file, "how fast the disk gives this file, past the system's cache");
  auto* table = app.add_subcommand("options", "docs/options.md, as the program has it");
  bool markdown = false;
  table->add_flag("--markdown", markdown, "the only form there is");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    const bool json = std::any_of(argv, argv + argc, [](const char* word) { return std::string_view(word) == "--json"; });
    std::string message = error.what();
    // CLI11 says only that a subcommand is required when the word in its place is none.
    const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
    const auto named = [argv](const CLI::App* command) { return command->get_name() == argv[1]; };
    if (argc > 1 && argv[1][0] != '-' && std::none_of(commands.begin(), commands.end(), named)) {
      message = fmt::format("there is no command {}; there are generate, plan, inspect, devices and options", argv[1]);
    }
    return report({Code::invalid_argument, message}, json);
  }

  if (draw->parsed())
    status = generate(parsed.settings);
  else if (show->parsed())
    status = plan(parsed.settings);
  else if (look->parsed())
    status = inspect_file(parsed.file, parsed.json);
  else if (list->parsed())
    status = show_devices({parsed.devices.measure, parsed.json, parsed.devices.device, parsed.devices.file});
  else
    fmt::print("{}", options_markdown());
  if (!status) return report(status.error(), parsed.json || parsed.settings.json);
  return static_cast<int>(Exit::ok);
}

}  // namespace

int run(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs(
        "sluice: the machine is out of memory\n  lower --host-budget, choose --tier mapped or --tier disk, or lower "
        "--width/--height\n",
        stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice: a library failed: %s\n  try again; if it happens again, choose another --device\n",
                 error.what());
  } catch (...) {
    std::fputs("sluice: a library failed without saying why\n  try again; if it happens again, choose another --device\n",
               stderr);
  }
  return static_cast<int>(Exit::device_failure);
}

}  // namespace sluice::cli
