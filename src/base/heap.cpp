#include "base/heap.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLUICE_SANITIZER_HEAP 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SLUICE_SANITIZER_HEAP 1
#endif
#endif

#ifdef SLUICE_SANITIZER_HEAP
#include <cstddef>
// As in LLVM's sanitizer/allocator_interface.h, which GCC does not always install.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();
#elif __has_include(<malloc.h>)
#include <malloc.h>
#endif

namespace sluice {

HeapUse heap_in_use() {
#if defined(SLUICE_SANITIZER_HEAP)
  return {static_cast<Bytes>(__sanitizer_get_current_allocated_bytes()), true};
#elif defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
  const auto info = mallinfo2();
  // Large blocks come from mmap and are counted apart.
  return {static_cast<Bytes>(info.uordblks) + static_cast<Bytes>(info.hblkhd), true};
#else
  return {};
#endif
}

}  // namespace sluice
