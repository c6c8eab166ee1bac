#pragma once

#include <cstddef>
#include <span>

#include "base/bytes.h"
#include "base/result.h"

namespace sluice {

/// Size of a page of memory in bytes; a power of two.
Bytes page_size();

/// Private zeroed memory of whole pages, straight from the operating system and given back to it when this goes.
/// Threads: `allow` and `forbid` may be called from any thread, but the caller orders them against uses of the bytes.
class Pages {
 public:
  /// No pages.
  Pages() = default;
  /// Maps at least `size` bytes (rounded up to pages), readable and writable. Errors: io with needed = size (out of memory, or
  /// 0 bytes).
  static Result<Pages> map(Bytes size);
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();

  std::byte* data() const { return data_; }
  /// As asked for; what is mapped reaches to the end of the last page.
  Bytes size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<std::size_t>(size_)}; }

  /// Makes the pages readable and writable. Errors: io.
  Status allow() const;
  /// Makes every touch of the pages a fault. Errors: io; unsupported where the operating system cannot.
  Status forbid() const;

 private:
  Pages(std::byte* data, Bytes size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  Bytes size_ = 0;
};

}  // namespace sluice
