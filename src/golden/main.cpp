#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "golden/glob.h"
#include "golden/runner.h"

namespace sluice::golden {
namespace {

struct Totals {
  int passed = 0, failed = 0;
};

void print_line(const std::string& name, const Measured& m, Totals& totals) {
  const bool ok = m.passed();
  ++(ok ? totals.passed : totals.failed);
  if (!m.problem.empty()) {
    fmt::print("FAIL  {:<40} {}\n", name, m.problem);
    return;
  }
  std::string figures;
  const auto add = [&figures](const char* what, double got, double allowed) {
    if (allowed >= 0) figures += fmt::format("{}{} {:.2e} (allowed {:.0e})", figures.empty() ? "" : ", ", what, got, allowed);
  };
  add("rel rms", m.difference.rel_rms, m.allowed.rel_rms);
  add("max/rms", m.difference.max_abs_over_rms, m.allowed.max_abs_over_rms);
  add("max", m.difference.max_abs, m.allowed.max_abs);
  fmt::print("{}  {:<40} {}{}\n", ok ? "ok  " : "FAIL", name, figures, m.note.empty() ? "" : ", " + m.note);
}

/// The outputs that case.json lists and the runner left out: nothing passes by not being looked at.
void demand_all(const Case& one, std::vector<Measured>& results) {
  if (!one.meta.contains("outputs") || !one.meta.at("outputs").is_object()) return;
  for (const auto& entry : one.meta.at("outputs").items()) {
    const auto& name = entry.key();
    if (std::none_of(results.begin(), results.end(), [&name](const Measured& m) { return m.output == name; })) {
      results.push_back(unknown(name, "was not computed"));
    }
  }
}

Result<std::vector<Measured>> run_case(const Case& one, const Setup& setup) {
  if (!one.problem.empty()) return fail(Code::corrupt, one.problem);
  const auto runner = find_runner(one);
  if (!runner) return fail(Code::unsupported, fmt::format("no runner for \"{}\"", one.meta.value("run", std::string{})));
  try {
    SLUICE_ASSIGN(auto results, runner(one, setup));
    demand_all(one, results);
    return results;
  } catch (const std::exception& error) {  // nlohmann-json's way to say that case.json lacks something; bad_alloc
    return fail(Code::corrupt, error.what());
  }
}

class Selection {
 public:
  explicit Selection(std::vector<std::string> patterns) : patterns_(std::move(patterns)) {}
  bool has(const std::string& name) const {
    return patterns_.empty() ||
           std::any_of(patterns_.begin(), patterns_.end(), [&](const auto& p) { return glob_match(p, name); });
  }
  /// Whether some output of a case with a line for each could be meant: the pattern's first two parts match.
  bool may_have_outputs_of(const std::string& id) const {
    return std::any_of(patterns_.begin(), patterns_.end(), [&](const std::string& p) {
      const auto slash = p.find('/', p.find('/') + 1);
      return p.find('/') == std::string::npos || glob_match(p.substr(0, slash), id);
    });
  }

 private:
  std::vector<std::string> patterns_;
};

void run_selected(const Case& one, const Selection& selection, const Setup& setup, Totals& totals) {
  const auto id = one.id();
  const bool each_output = one.family == "sampling";
  const bool whole = selection.has(id);
  if (!whole && !(each_output && selection.may_have_outputs_of(id))) return;
  const auto results = run_case(one, setup);
  if (!results) {
    print_line(id, unknown({}, results.error().message), totals);
  } else if (each_output) {
    for (const auto& result : *results) {
      const auto name = id + "/" + result.output;
      if (whole || selection.has(name)) print_line(name, result, totals);
    }
  } else if (results->empty()) {
    print_line(id, unknown({}, "nothing was compared"), totals);
  } else {
    const auto worse = [](const Measured& a, const Measured& b) {
      if (a.problem.empty() != b.problem.empty()) return !b.problem.empty();
      return a.allowed.used(a.difference) < b.allowed.used(b.difference);
    };
    auto worst = *std::max_element(results->begin(), results->end(), worse);
    if (!worst.problem.empty())
      worst.problem = worst.output + ": " + worst.problem;
    else if (results->size() > 1)
      worst.note = fmt::format("{}worst of {}: {}", worst.note.empty() ? "" : worst.note + ", ", results->size(), worst.output);
    print_line(id, worst, totals);
  }
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  CLI::App app("Runs the oracle's cases and compares. Selected cases that it cannot run count as failed.", "sluice-golden");
  std::vector<std::string> patterns, folders;
  std::string budget;
  Setup setup;
  app.add_option("--case", patterns, "family/case, with * and ?; for sampling family/case/output; may be repeated [all]")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  app.add_option("--budget", budget,
                 "device bytes for each network, or sweep: eight budgets that have to agree bit for bit [unlimited]")
      ->type_name("SIZE|sweep");
  app.add_option("--device", setup.device, "where networks run")->type_name("NAME")->capture_default_str();
  app.add_option("DIR", folders, "folders to search for case.json")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (budget == "sweep") {
    setup.sweep = true;
  } else if (!budget.empty()) {
    const auto bytes = parse_bytes(budget);
    if (!bytes) {
      fmt::print(stderr, "sluice-golden: --budget: {}\n", bytes.error().message);
      return 2;
    }
    setup.budget = *bytes;
  }
  const auto cases = find_cases(folders);
  if (!cases) {
    fmt::print(stderr, "sluice-golden: {}\n", cases.error().message);
    return 2;
  }
  Totals totals;
  const Selection selection(patterns);
  for (const auto& one : *cases) run_selected(one, selection, setup, totals);
  if (totals.passed + totals.failed == 0) fmt::print("no case was selected\n");
  fmt::print("{} passed, {} failed\n", totals.passed, totals.failed);
  return totals.failed == 0 && totals.passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace sluice::golden

int main(int argc, char** argv) {
  try {
    return sluice::golden::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice-golden: %s\n", error.what());
    return 2;
  }
}
