#include "golden/array.h"
#include "golden/runner.h"

namespace sluice::golden {

Result<std::vector<Measured>> run_gguf_types(const Case& one, const Setup&) {
  SLUICE_ASSIGN(const auto io, one.io());
  SLUICE_ASSIGN(const auto model, one.weights());
  std::vector<Measured> out;
  for (const auto& entry : one.meta.at("outputs").items()) {
    const auto got = read_array(*model, entry.key());
    out.push_back(got ? measure(*io, entry.key(), got->values, tolerance(Work::dequantise, "f32", "host"))
                      : unknown(entry.key(), got.error().message));
  }
  return out;
}

}  // namespace sluice::golden
