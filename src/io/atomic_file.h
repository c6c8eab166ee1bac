#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/result.h"

namespace sluice {

/// One attempt to write, with write(2)'s manners: how many bytes went (possibly fewer), or minus an errno. A seam for tests.
using WriteAttempt = std::function<std::int64_t(int descriptor, std::span<const std::byte> bytes)>;

/// A file that appears under its name complete or not at all: it is written to a hidden temporary file in the same folder,
/// which is flushed to the disk and renamed by `commit`. Whatever fails before, nothing is left. A file that was there is
/// replaced; a link is replaced, not followed. One thread at a time.
class AtomicFile {
 public:
  /// Errors: io (path and the system's text).
  static Result<AtomicFile> create(std::string path, WriteAttempt attempt = {});
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  /// Appends. EINTR and short writes are retried. A disk that is full, or a file-size limit (its signal is held back), is an
  /// error. After an error only destruction makes sense. Errors: io.
  Status write(std::span<const std::byte> bytes);

  /// Flushes and renames. At most once. Errors: io; then the temporary file is gone too.
  Status commit();

 private:
  AtomicFile(std::string path, std::string temporary, int descriptor, WriteAttempt attempt);
  void discard();

  std::string path_, temporary_;
  int descriptor_ = -1;
  WriteAttempt attempt_;
};

/// `bytes` as the whole of `path`, by the rules above. Errors: io.
Status write_whole_file(const std::string& path, std::span<const std::byte> bytes);

}  // namespace sluice
