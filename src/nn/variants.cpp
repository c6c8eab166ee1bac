#include "nn/variants.h"

namespace sluice {

std::uint64_t Variants::hash() const {
  // FNV-1a over the fields in the order they are declared; the leading number changes when the meaning of a field does.
  std::uint64_t h = 14695981039346656037ull;
  for (const std::uint64_t field : {std::uint64_t{1}, im2col_limit, score_limit}) {
    for (int byte = 0; byte < 8; ++byte) h = (h ^ ((field >> (8 * byte)) & 0xff)) * 1099511628211ull;
  }
  return h;
}

}  // namespace sluice
