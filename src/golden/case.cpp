#include "golden/case.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

namespace sluice::golden {

namespace fs = std::filesystem;

Result<std::shared_ptr<const TensorFile>> Case::io() const { return open_tensor_file(path(meta.at("io")), *system_files()); }

Result<std::shared_ptr<const TensorFile>> Case::weights(std::size_t index) const {
  return open_tensor_file(path(meta.at("weights").at(index)), *system_files());
}

namespace {

Case read_case(const fs::path& json) {
  Case out;
  out.folder = fs::absolute(json).lexically_normal().parent_path();
  out.name = out.folder.filename().string();
  out.family = out.folder.parent_path().filename().string();
  try {
    std::ifstream file(json);
    out.meta = nlohmann::json::parse(file);
    out.family = out.meta.value("family", out.family);
    out.name = out.meta.value("case", out.name);
  } catch (const nlohmann::json::exception& error) {
    out.problem = fmt::format("case.json: {}", error.what());
  }
  return out;
}

}  // namespace

Result<std::vector<Case>> find_cases(const std::vector<std::string>& folders) {
  std::vector<Case> cases;
  for (const auto& folder : folders) {
    std::error_code error;
    if (!fs::is_directory(folder, error)) return fail(Code::not_found, fmt::format("{}: no such folder", folder));
    auto at = fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied, error);
    for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
      if (at->path().filename() == "case.json") cases.push_back(read_case(at->path()));
    }
    if (error) return fail(Code::io, fmt::format("{}: {}", folder, error.message()));
  }
  std::sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) { return a.id() < b.id(); });
  const auto same = [](const Case& a, const Case& b) { return a.folder == b.folder; };
  cases.erase(std::unique(cases.begin(), cases.end(), same), cases.end());
  return cases;
}

}  // namespace sluice::golden
