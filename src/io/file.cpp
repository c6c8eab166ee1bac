#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>

#include "io/read_fully.h"

namespace sluice {
namespace {

std::string errno_text(int error) { return std::generic_category().message(error); }

Bytes page_size() {
  static const auto size = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  return size;
}

class SystemMapping final : public Mapping {
 public:
  SystemMapping(void* start, std::size_t size) : start_(start), size_(size) {}
  SystemMapping(const SystemMapping&) = delete;
  SystemMapping& operator=(const SystemMapping&) = delete;
  ~SystemMapping() override {
    if (size_ > 0) munmap(start_, size_);
  }

  std::span<const std::byte> bytes() const override { return {static_cast<const std::byte*>(start_), size_}; }

  void drop(Bytes offset, Bytes size) const override {
    if (offset >= size_) return;
    const Bytes end = offset + std::min<Bytes>(size, size_ - offset);
    // Only whole pages inside the range, save at the end of the file, whose last page nobody else shares.
    const Bytes first = align_up(offset, page_size());
    const Bytes last = end == size_ ? align_up(end, page_size()) : end / page_size() * page_size();
    if (first < last) madvise(static_cast<std::byte*>(start_) + first, last - first, MADV_DONTNEED);
  }

  void will_need(Bytes offset, Bytes size) const override {
    if (offset >= size_) return;
    const Bytes end = offset + std::min<Bytes>(size, size_ - offset);
    const Bytes first = offset / page_size() * page_size();
    madvise(static_cast<std::byte*>(start_) + first, end - first, MADV_WILLNEED);
  }

 private:
  void* start_;
  std::size_t size_;
};

/// What tells one state of a file from another.
struct Identity {
  dev_t device;
  ino_t inode;
  off_t size;
  time_t seconds;
  long nanoseconds;
  bool operator==(const Identity&) const = default;
};

Identity identity_of(const struct stat& s) {
#if defined(__APPLE__)
  return {s.st_dev, s.st_ino, s.st_size, s.st_mtimespec.tv_sec, s.st_mtimespec.tv_nsec};
#else
  return {s.st_dev, s.st_ino, s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec};
#endif
}

class SystemFile final : public File {
 public:
  SystemFile(std::string path, int descriptor, Identity identity)
      : path_(std::move(path)), descriptor_(descriptor), identity_(identity) {}
  SystemFile(const SystemFile&) = delete;
  SystemFile& operator=(const SystemFile&) = delete;
  ~SystemFile() override { close(descriptor_); }

  const std::string& path() const override { return path_; }
  Bytes size() const override { return static_cast<Bytes>(identity_.size); }
  Bytes bytes_read() const override { return bytes_read_.load(std::memory_order_relaxed); }

  Status read_at(Bytes offset, std::span<std::byte> out) const override {
    if (offset > size() || out.size() > size() - offset)
      return fail(Code::io,
                  fmt::format("{}: {} bytes at offset {} lie outside the file of {} bytes", path_, out.size(), offset, size()),
                  out.size(), size());
    return read_fully(path_, offset, out, [this](std::span<std::byte> to, Bytes from) -> std::int64_t {
      const ssize_t got = pread(descriptor_, to.data(), to.size(), static_cast<off_t>(from));
      if (got < 0) return -errno;
      bytes_read_.fetch_add(static_cast<Bytes>(got), std::memory_order_relaxed);
      return got;
    });
  }

  Status read_at_uncached(Bytes offset, std::span<std::byte> out) const override {
    SLUICE_TRY(read_at(offset, out));
#if defined(POSIX_FADV_DONTNEED)
    const Bytes first = offset / page_size() * page_size();
    const Bytes last = align_up(offset + out.size(), page_size());
    posix_fadvise(descriptor_, static_cast<off_t>(first), static_cast<off_t>(last - first), POSIX_FADV_DONTNEED);
#endif
    return {};
  }

  Result<std::shared_ptr<const Mapping>> map() const override {
    if (size() == 0) return std::make_shared<SystemMapping>(nullptr, 0);
    void* start = mmap(nullptr, size(), PROT_READ, MAP_SHARED, descriptor_, 0);
    if (start == MAP_FAILED)
      return fail(Code::io, fmt::format("{}: mapping {} bytes failed: {}", path_, size(), errno_text(errno)), size());
    return std::make_shared<SystemMapping>(start, size());
  }

  Status unchanged() const override {
    struct stat by_path{};
    struct stat by_descriptor{};
    if (stat(path_.c_str(), &by_path) != 0)
      return fail(Code::io, fmt::format("{}: the file was there when it was opened, now: {}", path_, errno_text(errno)));
    if (fstat(descriptor_, &by_descriptor) != 0)
      return fail(Code::io, fmt::format("{}: fstat failed: {}", path_, errno_text(errno)));
    if (identity_of(by_descriptor) != identity_)
      return fail(Code::io, fmt::format("{}: the file was written to since it was opened: load it again", path_),
                  static_cast<Bytes>(identity_.size), static_cast<Bytes>(by_descriptor.st_size));
    if (identity_of(by_path) != identity_)
      return fail(Code::io, fmt::format("{}: another file has taken this path since it was opened: load it again", path_));
    return {};
  }

 private:
  const std::string path_;
  const int descriptor_;
  const Identity identity_;
  mutable std::atomic<Bytes> bytes_read_{0};
};

class SystemFiles final : public FileSource {
 public:
  Result<std::shared_ptr<const File>> open(const std::string& path) const override {
    int descriptor = -1;
    do {
      // Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
      descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0) {
      const bool absent = errno == ENOENT || errno == ENOTDIR;
      return fail(absent ? Code::not_found : Code::io, fmt::format("{}: cannot open: {}", path, errno_text(errno)));
    }
    struct stat s{};
    std::string trouble;
    if (fstat(descriptor, &s) != 0) {
      trouble = errno_text(errno);
    } else if (S_ISDIR(s.st_mode)) {
      trouble = "it is a folder, a file is needed";
    } else if (!S_ISREG(s.st_mode)) {
      trouble = "it is no regular file";
    }
    if (!trouble.empty()) {
      close(descriptor);
      return fail(Code::io, fmt::format("{}: cannot open: {}", path, trouble));
    }
    return std::make_shared<SystemFile>(path, descriptor, identity_of(s));
  }
};

}  // namespace

std::shared_ptr<const FileSource> system_files() {
  static const auto files = std::make_shared<const SystemFiles>();
  return files;
}

}  // namespace sluice
