#include "cli/settings.h"

#include <fmt/format.h>

namespace sluice::cli {

Status settle(Settings& settings) {
  auto& device = settings.engine.device;
  if (settings.threads) {
    if (device != "cpu") {
      return fail(
          Code::invalid_argument,
          fmt::format("--threads sets the CPU device's threads and has no effect with --device {}: leave one of the two out",
                      device));
    }
    device = fmt::format("cpu:threads={}", *settings.threads);
  }
  if (settings.quiet && settings.verbose)
    return fail(Code::invalid_argument, "--quiet and --verbose contradict each other: leave one out");
  if (settings.engine.model.empty()) return fail(Code::invalid_argument, "no model given: add --model FILE");
  const auto kind = device.substr(0, device.find(':'));
  std::string known = "cpu, sim";
  bool found = kind == "cpu" || kind == "sim";
  if (!found) {
    for (const auto& summary : devices()) {
      found = found || summary.name == kind;
      if (summary.name != "cpu" && summary.name != "sim") known += ", " + summary.name;
    }
  }
  if (!found)
    return fail(Code::invalid_argument, fmt::format("--device {}: there is no such device; there are: {}", device, known));
  return {};
}

}  // namespace sluice::cli
