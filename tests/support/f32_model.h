#pragma once

#include <string>

#include "base/result.h"

namespace sluice::test {

/// Writes the demo model with every tensor widened to f32 and its data at multiples of 64 bytes: the kind of file whose weights
/// can be used in place. Cost: about 60 MB and a second.
Status write_f32_model(const std::string& path);

}  // namespace sluice::test
