#pragma once

#include "base/bytes.h"

namespace sluice {

/// Bytes that the C and C++ heap of this process has handed out and not got back.
struct HeapUse {
  Bytes bytes = 0;
  bool known = false;  ///< false where the C library cannot say
};

/// A reading of the whole process: allocations of other threads are in it. Source: mallinfo2(3); with AddressSanitizer,
/// ThreadSanitizer or MemorySanitizer their __sanitizer_get_current_allocated_bytes.
HeapUse heap_in_use();

}  // namespace sluice
