#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/result.h"

namespace sluice {

/// One attempt to read, with pread(2)'s manners: how many bytes came (possibly fewer than asked), 0 at the end, or minus an
/// errno.
using ReadAttempt = std::function<std::int64_t(std::span<std::byte> out, Bytes offset)>;

/// Calls `attempt` until `out` is full: EINTR and short reads are retried, anything else is Code::io with `path`, offset and
/// the system's text. The seam at which tests stand in for the system.
Status read_fully(const std::string& path, Bytes offset, std::span<std::byte> out, const ReadAttempt& attempt);

}  // namespace sluice
