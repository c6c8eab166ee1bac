#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/result.h"

namespace sluice {

/// A read-only view of a whole file in memory, shared and clean (MAP_SHARED, PROT_READ). Owned: unmapped when it goes.
/// Truncating the file under a mapping is a fault no mapping can survive; `File::unchanged` is asked before each use.
class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual std::span<const std::byte> bytes() const = 0;
  /// Tells the system that the range is not needed for now (its pages leave the page tables; no error).
  virtual void drop(Bytes offset, Bytes size) const = 0;
  /// Asks the system to read the range ahead, where it can; does not wait and cannot fail.
  virtual void will_need(Bytes offset, Bytes size) const = 0;
};

/// One open file for positioned reads. Thread safe: reads carry their offset.
class File {
 public:
  virtual ~File() = default;
  virtual const std::string& path() const = 0;
  virtual Bytes size() const = 0;
  /// Fills all of `out` from `offset`. EINTR and short reads are retried; anything else is Code::io with path, offset, errno
  /// text.
  virtual Status read_at(Bytes offset, std::span<std::byte> out) const = 0;
  /// The same, but what was read does not stay in the system's page cache, so that streaming a file larger than memory does not
  /// push everything else out. Cost: every later read of the range comes from the disk again, also for other programs that had
  /// it cached; a partly read page at either end is dropped with the rest. Where the system cannot do it, a plain `read_at`.
  virtual Status read_at_uncached(Bytes offset, std::span<std::byte> out) const { return read_at(offset, out); }
  /// Maps the whole file. Errors: io.
  virtual Result<std::shared_ptr<const Mapping>> map() const = 0;
  /// Error (io) if the path now leads to another file, or this one changed size or modification time since it was opened.
  virtual Status unchanged() const = 0;
  /// Bytes read by read_at and read_at_uncached so far (for reports and tests; mapped pages are not counted).
  virtual Bytes bytes_read() const = 0;
};

/// Where files come from: LevelDB's Env in small. The real one, or one that injects faults (io/faulty_files.h).
class FileSource {
 public:
  virtual ~FileSource() = default;
  /// Errors: not_found, io (a folder, no permission).
  virtual Result<std::shared_ptr<const File>> open(const std::string& path) const = 0;
};

/// The machine's own files. A process-wide constant; stateless.
std::shared_ptr<const FileSource> system_files();

}  // namespace sluice
