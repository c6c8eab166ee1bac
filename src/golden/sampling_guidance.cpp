#include <charconv>

#include "golden/array.h"
#include "golden/runner.h"
#include "sampling/guidance.h"

namespace sluice::golden {

Result<std::vector<Measured>> run_guidance(const Case& one, const Setup&) {
  SLUICE_ASSIGN(const auto io, one.io());
  SLUICE_ASSIGN(const auto cond, read_array(*io, "cond"));
  SLUICE_ASSIGN(const auto uncond, read_array(*io, "uncond"));
  std::vector<Measured> out;
  for (const auto& entry : one.meta.at("outputs").items()) {
    const auto& output = entry.key();
    const auto dot = output.find('.');
    const auto name = output.substr(0, dot), text = output.substr(dot + 1);
    double scale = 0;
    if (name != "cfg" || std::from_chars(text.data(), text.data() + text.size(), scale).ptr != text.data() + text.size()) {
      out.push_back(unknown(output, "no guidance " + name));
      continue;
    }
    std::vector<float> got(cond.values.size());
    apply_guidance(cond.values, uncond.values, scale, got);
    out.push_back(measure(*io, output, got, tolerance(Work::sampling, "f32", "host")));
  }
  return out;
}

}  // namespace sluice::golden
