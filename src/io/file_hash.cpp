#include "io/file_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "io/sha256.h"

namespace sluice {

Result<std::string> model_hash(const File& file, const CancelToken& cancel) {
  Sha256 hash;
  std::vector<std::byte> piece(std::min<Bytes>(MiB, file.size()));
  for (Bytes offset = 0; offset < file.size(); offset += piece.size()) {
    if (cancel.cancelled()) return fail(Code::cancelled, fmt::format("{}: hashing was cancelled", file.path()));
    piece.resize(std::min<Bytes>(MiB, file.size() - offset));
    SLUICE_TRY(file.read_at(offset, piece));
    hash.update(piece);
  }
  return hash.hex().substr(0, 10);
}

Result<std::string> quick_hash(const File& file) {
  Sha256 hash;
  std::array<std::byte, 8> size{};
  for (std::size_t i = 0; i < size.size(); ++i) size[i] = static_cast<std::byte>(file.size() >> (8 * i));
  hash.update(size);
  std::vector<std::byte> start(std::min<Bytes>(MiB, file.size()));
  SLUICE_TRY(file.read_at(0, start));
  hash.update(start);
  return hash.hex();
}

}  // namespace sluice
