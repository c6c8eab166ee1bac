#include "nn/variants.h"

namespace sluice {

std::uint64_t Variants::hash() const {
  // FNV-1a over the fields in the order they are declared; the leading number changes when the meaning of a field does.
  std::uint64_t h = 14695981039346656037ull;
  for (const std::uint64_t field : {std::uint64_t{1}, im2col_limit, score_limit, std::uint64_t{flash}}) {
    for (int byte = 0; byte < 8; ++byte) h = (h ^ ((field >> (8 * byte)) & 0xff)) * 1099511628211ull;
  }
  return h;
}

Variants variants_for(ggml_backend_dev_t device) {
  // The CPU's buffer type names no device in some versions of ggml.
  if (!device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) return {};
  // Graphics backends know flash attention for some head sizes only and round keys and values to f16; their matrix products are
  // much faster than their direct convolutions. 128 MiB is what every Vulkan device lets an operator see of a buffer
  // (maxStorageBufferRange); larger tensors are refused on some.
  return {.im2col_limit = 128 * MiB, .score_limit = 64 * MiB, .flash = false};
}

}  // namespace sluice
