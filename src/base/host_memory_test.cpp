#include "base/host_memory.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <random>

using namespace sluice;
namespace fs = std::filesystem;

namespace {

/// A made-up /proc and /sys under a folder of its own.
class FakeRoot {
 public:
  FakeRoot() : root_(fs::temp_directory_path() / ("sluice-host-memory-" + std::to_string(std::random_device{}()))) {
    write("proc/meminfo", "MemTotal:        8192 kB\nMemFree:          10 kB\nMemAvailable:    4096 kB\n");
  }
  ~FakeRoot() { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  HostMemory read() const { return host_memory(root_.string()); }

 private:
  fs::path root_;
};

}  // namespace

TEST_CASE("host_memory: without control groups it is MemAvailable") {
  const FakeRoot root;
  CHECK(root.read().known);
  CHECK(root.read().free == 4 * MiB);
  CHECK(root.read().total == 8 * MiB);
}

TEST_CASE("host_memory: version 2, the narrowest group on the way up counts, droppable cache is room") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/outer/inner\n");
  root.write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  root.write("sys/fs/cgroup/outer/inner/memory.current", "1048576\n");
  CHECK(root.read().free == 4 * MiB);
  root.write("sys/fs/cgroup/outer/memory.max", "3145728\n");
  root.write("sys/fs/cgroup/outer/memory.current", "2097152\n");
  CHECK(root.read().free == MiB);
  CHECK(root.read().total == 3 * MiB);
  root.write("sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 524288\ninactive_file_other 9\n");
  CHECK(root.read().free == MiB + 512 * KiB);
  root.write("sys/fs/cgroup/outer/inner/memory.high", "1048576\n");
  CHECK(root.read().free == 0);
  CHECK(root.read().total == MiB);
}

TEST_CASE("host_memory: version 2 in a container whose path is the host's") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/system.slice/not-here.scope\n");
  root.write("sys/fs/cgroup/memory.max", "2097152");
  root.write("sys/fs/cgroup/memory.current", "1048576");
  CHECK(root.read().free == MiB);
}

TEST_CASE("host_memory: version 1, the memory controller among others, no limit is a huge number") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "12:cpu,cpuacct:/a\n7:memory:/a/b\n1:name=systemd:/a\n");
  root.write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "100\n");
  CHECK(root.read().free == 4 * MiB);
  root.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2097152\n");
  root.write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1572864\n");
  root.write("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 524288\n");
  CHECK(root.read().free == MiB);
  CHECK(root.read().total == 2 * MiB);
}

TEST_CASE("host_memory: usage above the limit is no room, not a wrapped number") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/memory.max", "100");
  root.write("sys/fs/cgroup/memory.current", "200");
  CHECK(root.read().free == 0);
}

TEST_CASE("host_memory: unreadable or nonsensical files are unknown, not zero") {
  CHECK_FALSE(host_memory("/nonexistent").known);
  const FakeRoot root;
  root.write("proc/meminfo", "MemTotal: many kB\nMemAvailable: 4096 kB\n");
  CHECK_FALSE(root.read().known);
  root.write("proc/meminfo", "MemTotal: 0 kB\nMemAvailable: 4096 kB\n");
  CHECK_FALSE(root.read().known);
  root.write("proc/meminfo", "MemTotal: 8192 kB\nMemAvailable: 9000 kB\n");
  root.write("proc/self/cgroup", "nonsense\n0:\n");
  CHECK(root.read().free == 8 * MiB);
}

TEST_CASE("host_memory: the machine's own figures") {
  const HostMemory memory = host_memory();
  if (!memory.known) return;
  CHECK(memory.free <= memory.total);
  CHECK(memory.total > 64 * MiB);
}
