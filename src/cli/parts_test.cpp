#include <algorithm>
#include <fstream>
#include <sstream>

#include "cli/exit_code.h"
#include "cli/options.h"
#include "cli/output_path.h"
#include "cli/progress_bar.h"
#include "doctest/doctest.h"

namespace sluice::cli {
namespace {

const Option& option(const std::string& name) {
  const auto at = std::find_if(options().begin(), options().end(), [&](const Option& o) { return o.name == name; });
  REQUIRE(at != options().end());
  return *at;
}

}  // namespace

TEST_CASE("docs/options.md is the program's table") {
  std::ifstream file(std::string(SLUICE_SOURCE_DIR) + "/docs/options.md");
  std::stringstream text;
  text << file.rdbuf();
  CHECK_MESSAGE(text.str() == options_markdown(), "run: sluice options --markdown > docs/options.md");
}

TEST_CASE("options take what they document and name themselves when they refuse") {
  struct Row {
    const char *name, *text;
    bool good;
  };
  for (const Row row : {Row{"steps", "20", true},
                        {"steps", "0", false},
                        {"steps", "1e3", false},
                        {"steps", "", false},
                        {"steps", "99999999999", false},
                        {"seed", "-1", true},
                        {"seed", "9223372036854775807", true},
                        {"seed", "-2", false},
                        {"seed", "9223372036854775808", false},
                        {"cfg-scale", "0", true},
                        {"cfg-scale", "7.5", true},
                        {"cfg-scale", "-1", false},
                        {"cfg-scale", "nan", false},
                        {"cfg-scale", "inf", false},
                        {"device-budget", "6GiB", true},
                        {"device-budget", "-1GiB", true},
                        {"device-budget", "auto", true},
                        {"device-budget", "6 dogs", false},
                        {"host-budget", "1.5GiB", true},
                        {"host-budget", "-1GiB", false},
                        {"tier", "disk", true},
                        {"tier", "floppy", false},
                        {"load", "eager", true},
                        {"load", "disk", false},
                        {"pinned-budget", "1GiB", true},
                        {"pinned-budget", "much", false},
                        {"batch", "0", false},
                        {"width", "-8", false}}) {
    CAPTURE(row.name);
    CAPTURE(row.text);
    Settings settings;
    const auto status = option(row.name).set(settings, row.text);
    CHECK(status.has_value() == row.good);
    if (!status) {
      CHECK(status.error().code == Code::invalid_argument);
      CHECK(status.error().message.find("--" + std::string(row.name)) != std::string::npos);
    }
  }
}

TEST_CASE("defaults in the table are those of the engine") {
  // A default that is printed but not the real one would be a lie in three places.
  for (const auto& o : options()) {
    if (o.fallback.empty() || o.type == "flag") continue;
    Settings settings;
    if (o.name == "steps") CHECK(o.fallback == std::to_string(settings.request.steps));
    if (o.name == "sampler") CHECK(o.fallback == settings.request.sampler);
    if (o.name == "schedule") CHECK(o.fallback == settings.request.schedule);
    if (o.name == "rng") CHECK(o.fallback == settings.request.rng);
    if (o.name == "policy") CHECK(o.fallback == settings.engine.policy);
    if (o.name == "device") CHECK(o.fallback == settings.engine.device);
  }
}

TEST_CASE("pairs: budgets by device, places by component") {
  const auto set = [](Settings& settings, const char* name, const std::string& text) {
    return option(name).set(settings, text);
  };
  Settings settings;
  REQUIRE(set(settings, "device-budget", "vulkan0=6GiB,cpu=-1GiB"));
  CHECK(settings.engine.device_budgets.at("vulkan0").value == 6 * GiB);
  CHECK(settings.engine.device_budgets.at("cpu").kind == Budget::Kind::leave_free);
  CHECK(settings.engine.device_budget.kind == Budget::Kind::automatic);
  REQUIRE(set(settings, "place", "text=cpu,denoiser=sim:a+sim:b"));
  CHECK(settings.engine.place.at("denoiser") == "sim:a+sim:b");
  for (const char* bad : {"a", "a=", "=1GiB", "a=1GiB,", "a=1GiB,a=2GiB", "a=much"}) {
    CAPTURE(bad);
    Settings other;
    CHECK_FALSE(set(other, "device-budget", bad));
  }
  Settings other;
  CHECK_FALSE(set(other, "place", "text=cpu,text=sim"));
}

TEST_CASE("contradictions are refused") {
  Settings both;
  both.engine.model = "m";
  both.quiet = both.verbose = true;
  CHECK_FALSE(check_together(both));
  CHECK_FALSE(check_together(*std::make_unique<Settings>()));  // no model
}

TEST_CASE("output names") {
  CHECK(output_paths("", 7, 1) == std::vector<std::string>{"sluice-7.png"});
  CHECK(output_paths("a/b.png", 7, 1) == std::vector<std::string>{"a/b.png"});
  CHECK(output_paths("a/b.png", 7, 2) == std::vector<std::string>{"a/b-0001.png", "a/b-0002.png"});
  CHECK(output_paths("", 9, 2) == std::vector<std::string>{"sluice-9-0001.png", "sluice-9-0002.png"});
  CHECK(check_output(""));
  CHECK(check_output("x.PNG"));
  CHECK_FALSE(check_output("x.jpg"));
  CHECK_FALSE(check_output("no-such-folder/x.png"));
}

TEST_CASE("every kind of error has its exit code and says what to do") {
  CHECK(exit_code(Code::invalid_argument) == Exit::usage);
  CHECK(exit_code(Code::over_budget) == Exit::does_not_fit);
  CHECK(exit_code(Code::corrupt) == Exit::bad_file);
  CHECK(exit_code(Code::device_oom) == Exit::device_failure);
  CHECK(exit_code(Code::cancelled) == Exit::cancelled);
  const auto text = explain({Code::over_budget, "64x64 does not fit", 9573376, 9569280});
  CHECK(text.find("9573376") != std::string::npos);
  CHECK(text.find("--device-budget") != std::string::npos);
  for (const Code code : {Code::not_found, Code::corrupt, Code::unsupported, Code::invalid_argument, Code::over_budget,
                          Code::device_oom, Code::device_failed, Code::io, Code::cancelled}) {
    CHECK(explain({code, "m"}).size() > std::string("m\n  ").size());
  }
}

TEST_CASE("the progress line fits the terminal and says stage, count, time left and rate") {
  const Progress progress{.stage = "denoise", .done = 5, .total = 20, .fraction = 0.25, .eta_s = 75, .link_bytes_per_s = 200e6};
  for (int columns = 1; columns <= 200; ++columns)
    CHECK(static_cast<int>(progress_line(progress, columns).size()) < std::max(columns, 2));
  const auto line = progress_line(progress, 100);
  for (const char* part : {"denoise", "5/20", "1:15 min left", "/s"}) CHECK(line.find(part) != std::string::npos);
  CHECK(progress_line({.stage = "load"}, 80).find("0/0") != std::string::npos);
}

}  // namespace sluice::cli
