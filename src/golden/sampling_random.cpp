#include <fmt/format.h>

#include <charconv>

#include "golden/array.h"
#include "golden/dotted_name.h"
#include "golden/runner.h"
#include "sampling/random.h"

namespace sluice::golden {
namespace {

Result<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ptr != text.data() + text.size()) {
    return fail(Code::invalid_argument, fmt::format("\"{}\" is no number", text));
  }
  return value;
}

/// torch_cpu.SEED.SHAPE, torch_cpu_sequence.SEED, philox.callN.SEED.SHAPE.
Result<Measured> run_one(const TensorFile& io, const std::string& output) {
  const auto [stream, middle, last] = split_dotted(output);
  SLUICE_ASSIGN(const auto want, read_array(io, output));
  std::vector<float> got(want.values.size());
  if (stream == "torch_cpu") {
    SLUICE_ASSIGN(const auto seed, number(middle));
    make_random_stream(RandomKind::cpu, seed)->normal(got);
  } else if (stream == "torch_cpu_sequence") {
    SLUICE_ASSIGN(const auto seed, number(last));
    auto random = make_random_stream(RandomKind::cpu, seed);
    std::size_t at = 0;
    for (const std::size_t size : {4, 64, 5, 32}) {
      if (at + size > got.size()) return unknown(output, "is shorter than its four calls");
      random->normal(std::span(got).subspan(at, size));
      at += size;
    }
  } else if (stream == "philox" && middle.starts_with("call")) {
    const auto call_seed = split_dotted(middle.substr(4));
    SLUICE_ASSIGN(const auto call, number(call_seed.first));
    SLUICE_ASSIGN(const auto seed, number(call_seed.last));
    auto random = make_random_stream(RandomKind::cuda, seed);
    for (std::uint64_t i = 0; i <= call; ++i) random->normal(got);
  } else {
    return unknown(output, fmt::format("no random stream {}", stream));
  }
  return measure(io, output, got, tolerance(Work::random, "f32", "host"));
}

}  // namespace

Result<std::vector<Measured>> run_random(const Case& one, const Setup&) {
  SLUICE_ASSIGN(const auto io, one.io());
  return each_output(one, [&](const std::string& output) { return run_one(*io, output); });
}

}  // namespace sluice::golden
