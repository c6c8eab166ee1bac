#include "base/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>
#include <vector>

namespace sluice {
namespace {

std::optional<Bytes> parse_count(std::string_view text) {
  const auto start = text.find_first_not_of(" \t");
  if (start == std::string_view::npos) return std::nullopt;
  Bytes value = 0;
  const auto [end, error] = std::from_chars(text.data() + start, text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;  // "max": no limit
  return value;
}

std::optional<Bytes> read_count(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return parse_count(line);
}

/// The number after `key` at the start of a line, in a file of "key number" lines.
std::optional<Bytes> read_field(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.size() > key.size() && line.starts_with(key) && (line[key.size()] == ' ' || key.back() == ':'))
      return parse_count(std::string_view(line).substr(key.size()));
  return std::nullopt;
}

struct GroupFiles {
  std::vector<const char*> limits;
  const char* usage;
  const char* droppable;  // in memory.stat
};
const GroupFiles kV2{{"memory.max", "memory.high"}, "memory.current", "inactive_file"};
const GroupFiles kV1{{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file"};

/// Narrows `memory` by the group at mount + path and by all above it, up to and including the mount's own directory. Inside a
/// container the path may be the host's and not exist here; the walk up then ends at the mount, which is the container's own
/// group.
void narrow(HostMemory& memory, const std::string& mount, std::string path, const GroupFiles& files) {
  while (true) {
    while (path.ends_with('/')) path.pop_back();
    const std::string group = mount + path + "/";
    for (const char* name : files.limits) {
      const auto limit = read_count(group + name);
      if (!limit) continue;
      const Bytes used = read_count(group + files.usage).value_or(0);
      const Bytes droppable = read_field(group + "memory.stat", files.droppable).value_or(0);
      const Bytes held = used - std::min(used, droppable);
      memory.total = std::min(memory.total, *limit);
      memory.free = std::min(memory.free, *limit - std::min(*limit, held));
    }
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

HostMemory host_memory(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  const auto available = read_field(meminfo, "MemAvailable:");
  const auto total = read_field(meminfo, "MemTotal:");
  if (!available || !total || *total == 0) return {};
  HostMemory memory{.free = *available * KiB, .total = *total * KiB, .known = true};

  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "hierarchy:controllers:path"; version 2 has no controllers.
    const auto first = line.find(':');
    const auto second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      narrow(memory, root + "/sys/fs/cgroup", path, kV2);
    } else if (controllers.find(",memory,") != std::string::npos) {
      narrow(memory, root + "/sys/fs/cgroup/memory", path, kV1);
    }
  }
  memory.free = std::min(memory.free, memory.total);
  return memory;
}

}  // namespace sluice
