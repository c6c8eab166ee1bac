#include "io/read_rate.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "io/file.h"

namespace sluice {
namespace {

constexpr Bytes kPiece = 4 * MiB;

/// A file of its own, for its descriptor alone.
void drop_from_cache(const std::string& path) {
#if defined(POSIX_FADV_DONTNEED)
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  close(descriptor);
#else
  (void)path;
#endif
}

}  // namespace

Result<ReadRate> time_reading(const std::string& path, Bytes most, double most_s) {
  SLUICE_ASSIGN(const auto file, system_files()->open(path));
  const Bytes end = std::min(file->size(), most);
  if (end == 0) return fail(Code::io, path + ": an empty file says nothing of its disk");
  drop_from_cache(path);
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(kPiece, end)));
  ReadRate rate;
  const auto start = std::chrono::steady_clock::now();
  do {
    const Bytes size = std::min(kPiece, end - rate.bytes);
    SLUICE_TRY(file->read_at(rate.bytes, std::span(piece).first(static_cast<std::size_t>(size))));
    rate.bytes += size;
    rate.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  } while (rate.bytes < end && rate.seconds < most_s);
  drop_from_cache(path);
  return rate;
}

}  // namespace sluice
