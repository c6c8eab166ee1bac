#pragma once

#include <string_view>

namespace sluice::golden {

/// Whether `text` matches `pattern`: * stands for any characters (slashes and none included), ? for one. Cost: linear in
/// practice.
bool glob_match(std::string_view pattern, std::string_view text);

}  // namespace sluice::golden
