#include "cli/log.h"

#include <cstdio>

namespace sluice::cli {

LogSink log_for(const Settings& settings) {
  const auto least = settings.verbose ? LogLevel::debug : settings.quiet ? LogLevel::error : LogLevel::warning;
  return LogSink([](LogLevel, std::string_view line) { fmt::print(stderr, "sluice: {}\n", line); }, least);
}

}  // namespace sluice::cli
