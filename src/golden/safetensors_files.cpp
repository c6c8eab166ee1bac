#include <fmt/format.h>

#include <algorithm>

#include "golden/array.h"
#include "golden/runner.h"

namespace sluice::golden {
namespace {

/// "ok_names.safetensors" holds what expected.safetensors calls names/….
std::string expected_prefix(const std::string& file) {
  const auto first = file.starts_with("ok_") ? 3u : 0u;
  return file.substr(first, file.find('.') - first) + "/";
}

/// Opens a file for whoever wants all of it: a tensor of an unknown type is then an error.
Result<std::shared_ptr<const TensorFile>> open_whole(const std::string& path) {
  SLUICE_ASSIGN(auto file, open_tensor_file(path, *system_files()));
  if (!file->unknown.empty()) {
    return fail(Code::unsupported,
                fmt::format("{}: tensor {} has a type that this build cannot read", path, file->unknown.front()));
  }
  return file;
}

void check_valid(const Case& one, const TensorFile& io, const std::string& name, const nlohmann::json& tensors,
                 std::vector<Measured>& out) {
  const auto file = open_whole(one.path(name));
  if (!file) {
    out.push_back(unknown(name, file.error().message));
    return;
  }
  if ((*file)->tensors.size() != tensors.size()) {
    out.push_back(unknown(name, fmt::format("has {} tensors, expected {}", (*file)->tensors.size(), tensors.size())));
    return;
  }
  for (const std::string tensor : tensors) {
    const auto got = read_array(**file, tensor);
    const auto wanted = expected_prefix(name) + tensor;
    if (!got) {
      out.push_back(unknown(wanted, got.error().message));
      continue;
    }
    auto result = measure(io, wanted, got->values, tolerance(Work::loading, "f32", "host"));
    if (const auto want = read_array(io, wanted); want && want->shape != got->shape) result.problem = "has another shape";
    out.push_back(std::move(result));
  }
  if (tensors.empty()) out.push_back({name, {}, tolerance(Work::loading, "f32", "host"), {}, {}});
}

}  // namespace

Result<std::vector<Measured>> run_safetensors_files(const Case& one, const Setup&) {
  SLUICE_ASSIGN(const auto io, one.io());
  std::vector<Measured> out;
  for (const auto& entry : one.meta.at("valid").items()) check_valid(one, *io, entry.key(), entry.value(), out);
  const auto either = one.meta.value("refuse_or_accept", std::vector<std::string>{});
  for (const auto& entry : one.meta.at("refuse").items()) {
    const auto& name = entry.key();
    const auto file = open_whole(one.path(name));
    Measured result{name, {}, tolerance(Work::loading, "f32", "host"), {}, {}};
    if (file && std::find(either.begin(), either.end(), name) == either.end()) {
      result.problem = fmt::format("was accepted; {}", entry.value().get<std::string>());
    } else if (!file && file.error().message.find(name) == std::string::npos) {
      result.problem = fmt::format("was refused without its name: {}", file.error().message);
    }
    out.push_back(std::move(result));
  }
  return out;
}

}  // namespace sluice::golden
