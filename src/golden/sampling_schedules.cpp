#include <fmt/format.h>

#include <charconv>

#include "golden/dotted_name.h"
#include "golden/runner.h"
#include "sampling/schedule.h"

namespace sluice::golden {
namespace {

Result<Measured> run_one(const TensorFile& io, const std::string& output) {
  const auto [name, parameters, count] = split_dotted(output);
  SLUICE_ASSIGN(const auto kind, parse_schedule(name));
  int steps = 0;
  if (std::from_chars(count.data(), count.data() + count.size(), steps).ptr != count.data() + count.size() ||
      !parameters.empty()) {
    return unknown(output, fmt::format("schedule {} takes no parameters here", name));
  }
  SLUICE_ASSIGN(const auto schedule, make_schedule(kind, NoiseTable::stable_diffusion(), steps));
  const std::vector<float> sigmas(schedule.sigmas.begin(), schedule.sigmas.end());
  return measure(io, output, sigmas, tolerance(Work::sampling, "f32", "host"));
}

}  // namespace

Result<std::vector<Measured>> run_schedules(const Case& one, const Setup&) {
  SLUICE_ASSIGN(const auto io, one.io());
  return each_output(one, [&](const std::string& output) { return run_one(*io, output); });
}

}  // namespace sluice::golden
