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

Status list_devices(bool json) {
  const auto list = devices();
  if (json) {
    auto array = nlohmann::json::array();
    for (const auto& device : list) array.push_back(to_json(device));
    fmt::print("{}\n", dump({{"devices", std::move(array)}}));
    return {};
  }
  for (const auto& device : list) fmt::print("{}", device_text(device));
  return {};
}

}  // namespace sluice::cli
