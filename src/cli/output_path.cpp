#include "cli/output_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace sluice::cli {

namespace fs = std::filesystem;

Status check_output(const std::string& path) {
  if (path.empty()) return {};
  const fs::path name(path);
  auto suffix = name.extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (suffix != ".png")
    return fail(Code::invalid_argument, fmt::format("--output {}: pictures are written as PNG; end the name in .png", path));
  std::error_code error;
  const auto folder = name.has_parent_path() ? name.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, error)) {
    return fail(Code::invalid_argument,
                fmt::format("--output {}: there is no folder {}; create it or choose another name", path, folder.string()));
  }
  if (fs::is_directory(name, error)) {
    return fail(Code::invalid_argument, fmt::format("--output {}: this is a folder; add a file name to it", path));
  }
  return {};
}

std::vector<std::string> output_paths(const std::string& path, std::int64_t seed, std::size_t count) {
  const fs::path whole(path.empty() ? fmt::format("sluice-{}.png", seed) : path);
  if (count == 1) return {whole.string()};
  std::vector<std::string> names;
  for (std::size_t i = 1; i <= count; ++i) {
    fs::path one = whole;
    one.replace_filename(fmt::format("{}-{:04}{}", whole.stem().string(), i, whole.extension().string()));
    names.push_back(one.string());
  }
  return names;
}

}  // namespace sluice::cli
