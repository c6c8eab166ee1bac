#pragma once

#include <string>

#include "base/bytes.h"
#include "base/result.h"

namespace sluice {

struct ReadRate {
  Bytes bytes = 0;  ///< read
  double seconds = 0;
};

/// Reads a file from its start, one piece after another, until its end, `most` bytes or `most_s` seconds, having told the
/// system to drop it from its cache before; it is dropped again afterwards, so that what was there before is not pushed out.
/// Pages that are mapped by somebody stay cached: then, and where the system has no such call, the rate is that of the cache.
/// Errors: not_found, io (also an empty file).
Result<ReadRate> time_reading(const std::string& path, Bytes most, double most_s);

}  // namespace sluice
