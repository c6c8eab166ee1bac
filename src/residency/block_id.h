#pragma once

#include <compare>
#include <cstdint>

namespace sluice {

using ComponentId = std::uint32_t;

/// A block of a registered component.
struct BlockId {
  ComponentId component = 0;
  std::uint32_t block = 0;
  auto operator<=>(const BlockId&) const = default;
};

}  // namespace sluice
