#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "bench/core.h"
#include "bench/machine.h"
#include "bench/micro.h"
#include "bench/residency.h"

namespace {

int run(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command != "core" && command != "micro" && command != "residency") {
    std::fputs(
        "usage: sluice-bench core [MODEL]        JSON lines: the design's numbers to reach\n"
        "       sluice-bench residency [MODEL [PICTURE.svg]]  JSON lines: what moves in which situation; a timeline\n"
        "       sluice-bench micro [--benchmark_…]  parts, with google-benchmark\n",
        stderr);
    return 2;
  }
  if (const char* why = sluice::bench::unfit_build()) {
    std::fprintf(stderr,
                 "sluice-bench: this is a %s build; measure one made with -DCMAKE_BUILD_TYPE=Release and without sanitizers\n",
                 why);
    return 2;
  }
  if (command == "micro") return sluice::bench::run_micro(argc - 1, argv + 1);
  const std::string model = argc > 2 ? argv[2] : SLUICE_SOURCE_DIR "/models/emoji-sd.safetensors";
  auto status = command == "core" ? sluice::bench::run_core(model) : sluice::bench::run_residency(model);
  if (status && command == "residency" && argc > 3) status = sluice::bench::draw_residency(model, argv[3]);
  if (!status) std::fprintf(stderr, "sluice-bench: %s\n", status.error().message.c_str());
  return status ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sluice-bench: %s\n", error.what());
    return 1;
  }
}
