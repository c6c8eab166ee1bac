#include "io/file.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>

#include "io/faulty_files.h"
#include "io/memory_file.h"
#include "io/read_fully.h"
#include "io/test_folder.h"

using namespace sluice;

namespace {

std::vector<std::byte> noise(std::size_t size, unsigned seed = 1) {
  std::mt19937 rng(seed);
  std::vector<std::byte> bytes(size);
  for (auto& b : bytes) b = static_cast<std::byte>(rng());
  return bytes;
}

std::string message(const Status& status) { return status ? "" : status.error().message; }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("system_files: positioned reads give the bytes, are counted, and stop at the end") {
  const test::Folder folder;
  const auto bytes = noise(100'000);
  test::spill(folder / "a", bytes);
  const auto file = system_files()->open(folder / "a").value();
  CHECK(file->size() == bytes.size());
  std::vector<std::byte> got(1000);
  REQUIRE(file->read_at(54'321, got));
  CHECK(std::equal(got.begin(), got.end(), bytes.begin() + 54'321));
  REQUIRE(file->read_at_uncached(99'000, got));
  CHECK(std::equal(got.begin(), got.end(), bytes.begin() + 99'000));
  CHECK(file->bytes_read() == 2000);
  CHECK(file->read_at(bytes.size(), {}));
  for (const Bytes offset : {Bytes{99'001}, Bytes{100'001}, ~Bytes{0}, ~Bytes{0} - 500, Bytes{1} << 63}) {
    CAPTURE(offset);
    const auto status = file->read_at(offset, got);
    REQUIRE_FALSE(status);
    CHECK(status.error().code == Code::io);
    CHECK(contains(message(status), folder / "a"));
  }
}

TEST_CASE("system_files: what cannot be opened says why") {
  const test::Folder folder;
  CHECK(system_files()->open(folder / "none").error().code == Code::not_found);
  CHECK(system_files()->open(folder / "").error().code == Code::io);
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const auto pipe = system_files()->open(folder / "pipe");  // must not wait for a writer
  REQUIRE_FALSE(pipe);
  CHECK(contains(pipe.error().message, "regular"));
}

TEST_CASE("system_files: a file cut short under the reader is an error with the offset") {
  const test::Folder folder;
  test::spill(folder / "a", noise(10'000));
  const auto file = system_files()->open(folder / "a").value();
  std::filesystem::resize_file(folder / "a", 4'000);
  std::vector<std::byte> got(5'000);
  const auto status = file->read_at(0, got);
  REQUIRE_FALSE(status);
  CHECK(status.error().code == Code::io);
  CHECK(contains(message(status), "4000"));
}

TEST_CASE("unchanged: sees writing, truncation, replacement and removal") {
  const test::Folder folder;
  const std::string path = folder / "a";
  test::spill(path, noise(1000));
  auto file = system_files()->open(path).value();
  CHECK(file->unchanged());
  SUBCASE("replaced by an equal copy") {
    test::spill(folder / "b", noise(1000));
    std::filesystem::rename(folder / "b", path);
  }
  SUBCASE("truncated") { std::filesystem::resize_file(path, 999); }
  SUBCASE("removed") { std::filesystem::remove(path); }
  SUBCASE("written to in place") {
    // Another time stamp, whatever the clock's grain.
    std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(2));
  }
  const auto status = file->unchanged();
  REQUIRE_FALSE(status);
  CHECK(status.error().code == Code::io);
}

TEST_CASE("map: the bytes of the file, shared and clean: private dirty memory below 5 %") {
  const test::Folder folder;
  const auto bytes = noise(8 * MiB);
  test::spill(folder / "a", bytes);
  test::flush(folder / "a");
  const auto file = system_files()->open(folder / "a").value();
  const auto mapping = file->map().value();
  const auto mapped = mapping->bytes();
  REQUIRE(mapped.size() == bytes.size());
  CHECK(std::equal(mapped.begin(), mapped.end(), bytes.begin()));
  CHECK(file->bytes_read() == 0);
#if defined(__linux__)
  const auto measure = [&](const std::string& key) {
    std::ifstream smaps("/proc/self/smaps");
    std::string line;
    std::ostringstream start;
    start << std::hex << reinterpret_cast<std::uintptr_t>(mapped.data()) << '-';
    bool here = false;
    while (std::getline(smaps, line)) {
      if (line.find('-') < line.find(' ')) here = line.starts_with(start.str());
      if (here && line.starts_with(key + ":")) return std::stol(line.substr(key.size() + 1)) * 1024;
    }
    return -1l;
  };
  CHECK(measure("Rss") > static_cast<long>(bytes.size() * 9 / 10));
  const long dirty = measure("Private_Dirty");
  CHECK(dirty >= 0);
  CHECK(dirty < static_cast<long>(bytes.size() / 20));
  mapping->drop(0, bytes.size());
  CHECK(measure("Rss") == 0);
#endif
  CHECK(std::equal(mapped.begin(), mapped.end(), bytes.begin()));
  mapping->drop(~Bytes{0}, 1);
  mapping->drop(100, ~Bytes{0});
  CHECK(mapped[4096] == bytes[4096]);
}

TEST_CASE("map: outlives its file; an empty file maps to nothing") {
  const test::Folder folder;
  test::spill(folder / "a", noise(5000));
  test::spill(folder / "empty", {});
  const auto mapping = system_files()->open(folder / "a").value()->map().value();
  CHECK(mapping->bytes()[4999] == noise(5000)[4999]);
  CHECK(system_files()->open(folder / "empty").value()->map().value()->bytes().empty());
}

#if defined(__linux__)
TEST_CASE("read_at_uncached: what was read leaves the page cache, what read_at reads stays") {
  const test::Folder folder;
  const Bytes size = 4 * MiB;
  test::spill(folder / "a", noise(size));
  test::flush(folder / "a");
  struct statfs fs{};
  REQUIRE(statfs((folder / "a").c_str(), &fs) == 0);
  constexpr auto kTmpfs = 0x01021994;
  if (fs.f_type == kTmpfs) {
    MESSAGE("the temporary folder is memory itself: nothing to drop");
    return;
  }
  const auto file = system_files()->open(folder / "a").value();
  const auto mapping = file->map().value();
  const auto cached = [&] {
    std::vector<unsigned char> pages(size / 4096);
    REQUIRE(mincore(const_cast<std::byte*>(mapping->bytes().data()), size, pages.data()) == 0);
    return std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; });
  };
  std::vector<std::byte> got(size);
  REQUIRE(file->read_at(0, got));
  CHECK(cached() == static_cast<long>(size / 4096));
  REQUIRE(file->read_at_uncached(0, got));
  CHECK(cached() < static_cast<long>(size / 4096 / 20));
}
#endif

TEST_CASE("read_fully: EINTR and short reads are retried, other errors are not") {
  const auto bytes = noise(1000);
  std::vector<std::byte> out(1000);
  int calls = 0;
  const auto attempt = [&](std::span<std::byte> to, Bytes offset) -> std::int64_t {
    if (++calls % 3 == 0) return -EINTR;
    const std::size_t n = std::min<std::size_t>(7, to.size());
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), n, to.begin());
    return static_cast<std::int64_t>(n);
  };
  REQUIRE(read_fully("f", 0, out, attempt));
  CHECK(out == bytes);
  calls = 0;
  const auto broken = [&](std::span<std::byte> to, Bytes) -> std::int64_t {
    ++calls;
    return to.size() > 500 ? 100 : -EIO;
  };
  const auto status = read_fully("the/path", 4096, out, broken);
  REQUIRE_FALSE(status);
  CHECK(calls == 6);
  CHECK(status.error().code == Code::io);
  CHECK(contains(message(status), "the/path"));
  CHECK(contains(message(status), "4596"));
  CHECK(contains(message(status), std::generic_category().message(EIO)));
}

TEST_CASE("FaultyFiles: the n-th read fails and no other; hiccups change nothing; counts are exact under threads") {
  MemoryFiles memory;
  const auto bytes = noise(4096);
  memory.add("a", bytes);
  const auto inner = std::make_shared<MemoryFiles>(memory);
  std::vector<std::byte> out(256);
  SUBCASE("fail_read") {
    const FaultyFiles files(inner, {.fail_read = 3});
    const auto file = files.open("a").value();
    for (int n = 1; n <= 5; ++n) {
      const auto status = file->read_at(16, out);
      CHECK(static_cast<bool>(status) == (n != 3));
      if (!status) CHECK(contains(message(status), "offset 16"));
    }
    CHECK(files.reads() == 5);
  }
  SUBCASE("keep_failing") {
    const FaultyFiles files(inner, {.fail_read = 2, .keep_failing = true});
    const auto file = files.open("a").value();
    for (int n = 1; n <= 5; ++n) CHECK(static_cast<bool>(file->read_at_uncached(0, out)) == (n < 2));
  }
  SUBCASE("hiccups") {
    const FaultyFiles files(inner, {.hiccups = true});
    const auto file = files.open("a").value();
    for (Bytes offset = 0; offset < 4096; offset += 256) {
      REQUIRE(file->read_at(offset, out));
      CHECK(std::equal(out.begin(), out.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset)));
    }
    CHECK_FALSE(file->read_at(4096, out));
  }
  SUBCASE("open and map") {
    const FaultyFiles files(inner, {.fail_open = 2, .fail_map = 1});
    const auto file = files.open("a").value();
    CHECK(files.open("a").error().code == Code::io);
    CHECK(files.open("b").error().code == Code::not_found);
    CHECK(file->map().error().code == Code::io);
    CHECK(file->map().value()->bytes().size() == 4096);
  }
  SUBCASE("threads and delays") {
    const FaultyFiles files(inner, {.fail_read = 57, .delay_seed = 9, .delay_us = 50});
    const auto file = files.open("a").value();
    std::atomic<int> failures{0};
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
          std::vector<std::byte> mine(64);
          for (int i = 0; i < 50; ++i) failures += file->read_at(0, mine) ? 0 : 1;
        });
    }
    CHECK(files.reads() == 200);
    CHECK(failures == 1);
    CHECK(file->bytes_read() == 199 * 64);
  }
}
