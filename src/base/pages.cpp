#include "base/pages.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>
#include <system_error>
#include <utility>

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#include <unistd.h>
#define SLUICE_HAS_MMAP 1
#endif

namespace sluice {

#ifdef SLUICE_HAS_MMAP

Bytes page_size() {
  static const Bytes size = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  return size;
}

Result<Pages> Pages::map(Bytes size) {
  if (size == 0 || size > std::numeric_limits<std::size_t>::max() - page_size())
    return fail(Code::io, "cannot map " + std::to_string(size) + " bytes of memory", size);
  void* data = mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    return fail(Code::io, "cannot map " + format_bytes(size) + " of memory: " + std::generic_category().message(errno), size);
  return Pages{static_cast<std::byte*>(data), size};
}

Pages::~Pages() {
  if (data_) munmap(data_, static_cast<std::size_t>(size_));
}

static Status protect(std::byte* data, Bytes size, int access) {
  if (data && mprotect(data, static_cast<std::size_t>(align_up(size, page_size())), access) != 0)
    return fail(Code::io, "cannot change the protection of memory: " + std::generic_category().message(errno));
  return {};
}

Status Pages::allow() const { return protect(data_, size_, PROT_READ | PROT_WRITE); }
Status Pages::forbid() const { return protect(data_, size_, PROT_NONE); }

#else

Bytes page_size() { return 4096; }

Result<Pages> Pages::map(Bytes size) {
  if (size == 0 || size > std::numeric_limits<std::size_t>::max() - page_size())
    return fail(Code::io, "cannot map " + std::to_string(size) + " bytes of memory", size);
  const auto whole = static_cast<std::size_t>(align_up(size, page_size()));
  void* data = ::operator new(whole, std::align_val_t{4096}, std::nothrow);
  if (!data) return fail(Code::io, "cannot get " + format_bytes(size) + " of memory", size);
  std::fill_n(static_cast<std::byte*>(data), whole, std::byte{0});
  return Pages{static_cast<std::byte*>(data), size};
}

Pages::~Pages() { ::operator delete(data_, std::align_val_t{4096}); }

Status Pages::allow() const { return {}; }
Status Pages::forbid() const { return fail(Code::unsupported, "memory cannot be made untouchable on this system"); }

#endif

Pages::Pages(Pages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace sluice
