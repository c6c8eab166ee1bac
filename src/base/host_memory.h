#pragma once

#include <string>

#include "base/bytes.h"

namespace sluice {

/// The memory this process may still use, and the most it could. `known` is false where the system does not say.
struct HostMemory {
  Bytes free = 0, total = 0;
  bool known = false;
};

/// The least of the machine's MemAvailable and the room in every control group above this process (v2: memory.max and
/// memory.high; v1: memory.limit_in_bytes), where page cache that a group can drop (inactive_file) counts as room. `total`
/// likewise. Linux only; read anew at each call, some 50 µs. `root` is put before /proc and /sys (for tests). Source: kernel
/// documentation, proc(5), admin-guide/cgroup-v2 and cgroup-v1/memory.
HostMemory host_memory(const std::string& root = "");

}  // namespace sluice
