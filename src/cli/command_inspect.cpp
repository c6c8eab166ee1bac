#include <fmt/format.h>

#include <cstdio>

#include "cli/commands.h"
#include "cli/report_json.h"
#include "cli/report_text.h"

namespace sluice::cli {

Status inspect_file(const std::string& path, bool json) {
  SLUICE_ASSIGN(const auto summary, inspect(path));
  fmt::print("{}", json ? dump(to_json(summary)) + "\n" : file_text(summary));
  return {};
}

}  // namespace sluice::cli
