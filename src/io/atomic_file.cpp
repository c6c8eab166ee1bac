#include "io/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

namespace sluice {
namespace {

std::string errno_text(int error) { return std::generic_category().message(error); }

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// Keeps SIGXFSZ from ending the process while this thread writes: the error code says all there is to say.
class FileSizeSignalHeld {
 public:
  FileSizeSignalHeld() {
    sigemptyset(&only_);
    sigaddset(&only_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &only_, &before_);
  }
  FileSizeSignalHeld(const FileSizeSignalHeld&) = delete;
  FileSizeSignalHeld& operator=(const FileSizeSignalHeld&) = delete;
  ~FileSizeSignalHeld() {
    if (sigismember(&before_, SIGXFSZ) == 1) return;
    // What the write raised is taken off before the mask is lifted.
    sigset_t pending;
    sigemptyset(&pending);
    if (sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1) {
      int signal = 0;
      sigwait(&only_, &signal);
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t only_, before_;
};

std::int64_t system_write(int descriptor, std::span<const std::byte> bytes) {
  const FileSizeSignalHeld held;
  const ssize_t wrote = ::write(descriptor, bytes.data(), bytes.size());
  return wrote < 0 ? -errno : wrote;
}

}  // namespace

AtomicFile::AtomicFile(std::string path, std::string temporary, int descriptor, WriteAttempt attempt)
    : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor), attempt_(std::move(attempt)) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)),
      attempt_(std::move(other.attempt_)) {}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() {
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) unlink(std::exchange(temporary_, {}).c_str());
}

Result<AtomicFile> AtomicFile::create(std::string path, WriteAttempt attempt) {
  static std::atomic<unsigned> counter{0};
  const std::string folder = folder_of(path);
  // A short name of its own, since the final one may be as long as the file system allows.
  for (int tries = 0; tries < 1000; ++tries) {
    std::string temporary = fmt::format("{}/.sluice-{}-{}.tmp", folder, getpid(), counter.fetch_add(1));
    const int descriptor = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0)
      return AtomicFile(std::move(path), std::move(temporary), descriptor,
                        attempt ? std::move(attempt) : WriteAttempt(system_write));
    if (errno != EEXIST && errno != EINTR) break;
  }
  return fail(Code::io, fmt::format("{}: cannot make a file in folder '{}': {}", path, folder, errno_text(errno)));
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::int64_t wrote = attempt_(descriptor_, bytes);
    if (wrote == -EINTR) continue;
    if (wrote <= 0)
      return fail(Code::io, fmt::format("{}: writing failed: {}", path_,
                                        wrote == 0 ? "nothing was taken" : errno_text(static_cast<int>(-wrote))));
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
  }
  return {};
}

Status AtomicFile::commit() {
  const auto refuse = [&](const char* doing) {
    const int error = errno;
    discard();
    return fail(Code::io, fmt::format("{}: {} failed: {}", path_, doing, errno_text(error)));
  };
  if (fsync(descriptor_) != 0) return refuse("flushing to the disk");
  if (close(std::exchange(descriptor_, -1)) != 0) return refuse("closing");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return refuse("renaming the finished file");
  temporary_.clear();
  // The name itself is safe once the folder is; not every file system can do it, and the data are safe already.
  const int folder = open(folder_of(path_).c_str(), O_RDONLY | O_CLOEXEC);
  if (folder >= 0) {
    fsync(folder);
    close(folder);
  }
  return {};
}

Status write_whole_file(const std::string& path, std::span<const std::byte> bytes) {
  SLUICE_ASSIGN(auto file, AtomicFile::create(path));
  SLUICE_TRY(file.write(bytes));
  return file.commit();
}

}  // namespace sluice
