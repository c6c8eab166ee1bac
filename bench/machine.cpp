#include "bench/machine.h"

#include <fstream>
#include <string>
#include <thread>

namespace sluice::bench {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

nlohmann::json machine() {
  static const std::string cpu = cpu_model();
  return {
      {"commit", SLUICE_COMMIT}, {"cpu", cpu}, {"cores", std::thread::hardware_concurrency()}, {"build", SLUICE_BUILD_TYPE}};
}

const char* unfit_build() {
#ifdef SLUICE_SANITIZED
  return "sanitized";
#elif !defined(NDEBUG)
  return "debug";
#else
  return nullptr;
#endif
}

}  // namespace sluice::bench
