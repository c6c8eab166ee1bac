#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "io/file.h"

namespace sluice {

/// What goes wrong with files that FaultyFiles opened. Counts run over all its files together and start at 1; 0 is never.
struct Faults {
  std::uint64_t fail_read = 0;   ///< the n-th read gives EIO
  bool keep_failing = false;     ///< and so does every read after it
  std::uint64_t fail_open = 0;   ///< the n-th open gives io
  std::uint64_t fail_map = 0;    ///< the n-th map gives io
  bool hiccups = false;          ///< reads are interrupted (EINTR) and come in short pieces, as a right reader must survive
  std::uint64_t delay_seed = 0;  ///< not 0: each read first sleeps a random time below `delay_us`
  std::uint32_t delay_us = 200;
};

/// Another source's files, made to fail on schedule: how tests prove that no read error is lost. Thread safe; files may outlive
/// it.
class FaultyFiles final : public FileSource {
 public:
  FaultyFiles(std::shared_ptr<const FileSource> inner, Faults faults);
  Result<std::shared_ptr<const File>> open(const std::string& path) const override;

  /// How often read_at, open and map were called so far, failed calls included.
  std::uint64_t reads() const;
  std::uint64_t opens() const;
  std::uint64_t maps() const;

  /// Shared by the files; an implementation's detail.
  struct State;

 private:
  std::shared_ptr<const FileSource> inner_;
  std::shared_ptr<State> state_;
};

}  // namespace sluice
