#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace sluice {

/// SHA-256 (FIPS 180-4), piece by piece, through libcrypto, which uses the processor's own instructions where it has them.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void update(std::span<const std::byte> bytes);
  /// Ends the message; 64 lower-case hex digits. At most once.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
