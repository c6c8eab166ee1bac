#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice {

/// A count of bytes. Never `int`, never "MB".
using Bytes = std::uint64_t;

inline constexpr Bytes KiB = 1024;
inline constexpr Bytes MiB = 1024 * KiB;
inline constexpr Bytes GiB = 1024 * MiB;

/// `a + b` and `a * b`, or false in `ok` (left as it is otherwise) when the result does not fit 64 bits.
bool checked_add(Bytes a, Bytes b, Bytes& out);
bool checked_mul(Bytes a, Bytes b, Bytes& out);

/// `size` rounded up to a multiple of `alignment` (a power of two, at least 1).
constexpr Bytes align_up(Bytes size, Bytes alignment) { return (size + alignment - 1) & ~(alignment - 1); }

/// "6GiB", "512MiB", "1.5GiB", "4096", "200MB" (decimal units are powers of 1000). Errors: invalid_argument.
Result<Bytes> parse_bytes(std::string_view text);

/// "5.6 GiB", "412.0 MiB", "96 B": three significant figures, for people.
std::string format_bytes(Bytes bytes);

}  // namespace sluice
