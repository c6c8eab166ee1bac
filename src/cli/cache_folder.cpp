#include "cli/cache_folder.h"

#include <cstdlib>
#include <filesystem>

namespace sluice::cli {

std::string cache_folder() {
  const auto folder = [](const char* variable) {
    const char* value = std::getenv(variable);
    std::filesystem::path path(value ? value : "");
    return path.is_absolute() ? path : std::filesystem::path();
  };
  if (const auto cache = folder("XDG_CACHE_HOME"); !cache.empty()) return (cache / "sluice").string();
  if (const auto home = folder("HOME"); !home.empty()) return (home / ".cache" / "sluice").string();
  return {};
}

}  // namespace sluice::cli
