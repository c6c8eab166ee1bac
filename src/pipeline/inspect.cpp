#include <fmt/format.h>

#include "io/tensor_file.h"
#include "models/describe.h"
#include "sluice/engine.h"

namespace sluice {

Result<FileSummary> inspect(const std::string& path) {
  SLUICE_ASSIGN(const auto file, open_tensor_file(path, *system_files()));
  const FileDescription d = describe(*file);
  FileSummary s;
  s.path = path;
  s.format = file->format;
  s.bytes = file->file->size();
  s.architecture = d.architecture;
  s.metadata.assign(file->metadata.begin(), file->metadata.end());
  for (const auto& part : d.parts) {
    ComponentSummary c;
    c.name = part_name(part.part);
    c.architecture = part.prefix.empty() ? d.architecture : fmt::format("under {}", part.prefix);
    for (const auto& [name, value] : part.dimensions) c.dims.emplace_back(name, fmt::format("{}", value));
    c.dtypes.assign(part.dtypes.begin(), part.dtypes.end());
    c.tensors = part.tensors;
    c.bytes = part.bytes;
    c.missing = part.missing;
    s.warnings.insert(s.warnings.end(), part.wrong.begin(), part.wrong.end());
    if (!part.problem.empty()) s.warnings.push_back(fmt::format("{}: {}", c.name, part.problem));
    s.components.push_back(std::move(c));
  }
  if (d.ballast_tensors > 0)
    s.ignored.push_back(fmt::format("{} tensors without use here (schedules, averages, counters), {}", d.ballast_tensors,
                                    format_bytes(d.ballast_bytes)));
  if (d.other_tensors > 0)
    s.unused.push_back(fmt::format("{} tensors that no component takes, {}", d.other_tensors, format_bytes(d.other_bytes)));
  for (const auto& name : file->unknown)
    s.warnings.push_back(fmt::format("tensor {} has a dtype this build cannot read", name));
  s.warnings.insert(s.warnings.end(), file->warnings.begin(), file->warnings.end());
  return s;
}

}  // namespace sluice
