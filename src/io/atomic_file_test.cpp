#include "io/atomic_file.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <system_error>

#include "io/image.h"
#include "io/test_folder.h"

using namespace sluice;

namespace {

const std::vector<std::byte> kOld(100, std::byte{1}), kNew(300'000, std::byte{2});

}  // namespace

TEST_CASE("AtomicFile: appears on commit, replaces what was there, leaves nothing else") {
  const test::Folder folder;
  const std::string path = folder / "out";
  {
    auto file = AtomicFile::create(path).value();
    REQUIRE(file.write(kOld));
    CHECK_FALSE(std::filesystem::exists(path));
    REQUIRE(file.commit());
  }
  CHECK(test::slurp(path) == kOld);
  REQUIRE(write_whole_file(path, kNew));
  CHECK(test::slurp(path) == kNew);
  CHECK(folder.entries() == 1);
  // The longest name there is still has room for the temporary one.
  CHECK(write_whole_file(folder / std::string(255, 'n'), kOld));
}

TEST_CASE("AtomicFile: given up without commit, or moved, it leaves no trace twice") {
  const test::Folder folder;
  {
    auto file = AtomicFile::create(folder / "out").value();
    auto moved = std::move(file);
    REQUIRE(moved.write(kNew));
  }
  CHECK(folder.entries() == 0);
}

TEST_CASE("AtomicFile: a full disk is an error with the path, and the old file stays") {
  const test::Folder folder;
  REQUIRE(write_whole_file(folder / "out", kOld));
  for (const int error : {ENOSPC, EIO, EDQUOT}) {
    int calls = 0;
    auto file = AtomicFile::create(folder / "out", [&](int descriptor, std::span<const std::byte> bytes) -> std::int64_t {
                  if (++calls == 1) return -EINTR;
                  if (calls == 4) return -error;
                  return ::write(descriptor, bytes.data(), std::min<std::size_t>(bytes.size(), 1000));
                }).value();
    const auto status = file.write(kNew);
    REQUIRE_FALSE(status);
    CHECK(status.error().code == Code::io);
    CHECK(status.error().message.find(folder / "out") != std::string::npos);
    CHECK(status.error().message.find(std::generic_category().message(error)) != std::string::npos);
  }
  CHECK(test::slurp(folder / "out") == kOld);
  CHECK(folder.entries() == 1);
}

TEST_CASE("AtomicFile: short writes and interruptions lose nothing") {
  const test::Folder folder;
  int calls = 0;
  auto file = AtomicFile::create(folder / "out", [&](int descriptor, std::span<const std::byte> bytes) -> std::int64_t {
                if (++calls % 2 == 0) return -EINTR;
                return ::write(descriptor, bytes.data(), std::min<std::size_t>(bytes.size(), 12'345));
              }).value();
  REQUIRE(file.write(kNew));
  REQUIRE(file.commit());
  CHECK(test::slurp(folder / "out") == kNew);
}

TEST_CASE("AtomicFile: a file-size limit is an error, not a signal that ends the process") {
  const test::Folder folder;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit small = before;
  small.rlim_cur = 10'000;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto status = write_whole_file(folder / "out", kNew);
  Image image{.width = 256, .height = 256, .rgb = std::vector<std::uint8_t>(256 * 256 * 3)};
  std::mt19937 rng(1);
  for (auto& value : image.rgb) value = static_cast<std::uint8_t>(rng());  // noise does not compress below the limit
  const auto picture = write_png(folder / "a.png", image);
  setrlimit(RLIMIT_FSIZE, &before);
  REQUIRE_FALSE(status);
  CHECK(status.error().code == Code::io);
  CHECK(status.error().message.find(std::generic_category().message(EFBIG)) != std::string::npos);
  REQUIRE_FALSE(picture);
  CHECK(picture.error().code == Code::io);
  CHECK(folder.entries() == 0);
  sigset_t pending;
  REQUIRE(sigpending(&pending) == 0);
  CHECK(sigismember(&pending, SIGXFSZ) == 0);
}

TEST_CASE("AtomicFile: a name that is a folder, or in no folder, is an error that leaves nothing") {
  const test::Folder folder;
  std::filesystem::create_directory(folder / "d");
  test::spill(folder / "d/inside", kOld);
  CHECK(write_whole_file(folder / "d", kOld).error().code == Code::io);
  CHECK(write_whole_file(folder / "none/out", kOld).error().code == Code::io);
  CHECK(folder.entries() == 1);
}
