#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.h"

namespace sluice {

/// SHA-256, piece by piece. Source: FIPS 180-4, sections 4.1.2, 5.1.1, 5.3.3 and 6.2. Not for secrets: no care for side
/// channels.
class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  /// Ends the message; 64 lower-case hex digits. At most once.
  std::string hex();

 private:
  void block(const std::byte* bytes);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_{};
  std::size_t held_ = 0;
  Bytes total_ = 0;
};

}  // namespace sluice
