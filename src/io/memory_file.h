#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/file.h"

namespace sluice {

/// A File whose bytes lie in memory: for tests, fuzzing and containers that arrive over a wire. It never changes and never
/// fails, except for reads past its end (io).
std::shared_ptr<const File> memory_file(std::string path, std::vector<std::byte> bytes);

/// Memory files by path. Errors of `open`: not_found.
class MemoryFiles final : public FileSource {
 public:
  void add(std::string path, std::vector<std::byte> bytes);
  Result<std::shared_ptr<const File>> open(const std::string& path) const override;

 private:
  std::map<std::string, std::vector<std::byte>> files_;
};

}  // namespace sluice
