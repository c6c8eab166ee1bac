#include "io/memory_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

namespace sluice {
namespace {

using Shared = std::shared_ptr<const std::vector<std::byte>>;

class MemoryMapping final : public Mapping {
 public:
  explicit MemoryMapping(Shared bytes) : bytes_(std::move(bytes)) {}
  std::span<const std::byte> bytes() const override { return *bytes_; }
  void drop(Bytes, Bytes) const override {}
  void will_need(Bytes, Bytes) const override {}

 private:
  Shared bytes_;
};

class MemoryFile final : public File {
 public:
  MemoryFile(std::string path, std::vector<std::byte> bytes)
      : path_(std::move(path)), bytes_(std::make_shared<const std::vector<std::byte>>(std::move(bytes))) {}
  const std::string& path() const override { return path_; }
  Bytes size() const override { return bytes_->size(); }
  Bytes bytes_read() const override { return bytes_read_.load(std::memory_order_relaxed); }
  Result<std::shared_ptr<const Mapping>> map() const override { return std::make_shared<MemoryMapping>(bytes_); }
  Status unchanged() const override { return {}; }

  Status read_at(Bytes offset, std::span<std::byte> out) const override {
    if (offset > size() || out.size() > size() - offset)
      return fail(Code::io,
                  fmt::format("{}: {} bytes at offset {} lie outside the file of {} bytes", path_, out.size(), offset, size()),
                  out.size(), size());
    std::copy_n(bytes_->begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    bytes_read_.fetch_add(out.size(), std::memory_order_relaxed);
    return {};
  }

 private:
  const std::string path_;
  const Shared bytes_;
  mutable std::atomic<Bytes> bytes_read_{0};
};

}  // namespace

std::shared_ptr<const File> memory_file(std::string path, std::vector<std::byte> bytes) {
  return std::make_shared<MemoryFile>(std::move(path), std::move(bytes));
}

void MemoryFiles::add(std::string path, std::vector<std::byte> bytes) { files_[std::move(path)] = std::move(bytes); }

Result<std::shared_ptr<const File>> MemoryFiles::open(const std::string& path) const {
  const auto found = files_.find(path);
  if (found == files_.end()) return fail(Code::not_found, fmt::format("{}: no such memory file", path));
  return memory_file(path, found->second);
}

}  // namespace sluice
