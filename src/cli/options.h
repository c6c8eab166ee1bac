#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/settings.h"

namespace sluice::cli {

/// One option of `generate` and `plan`: a row of the table from which the parser, --help and docs/options.md are made.
struct Option {
  std::string name;      ///< "steps": --steps
  char letter = 0;       ///< short form, 0: none
  std::string type;      ///< "text", "number", "count", "size", "name", "path", "flag"
  std::string unit;      ///< "pixels", "bytes", …; may be empty
  std::string fallback;  ///< the default, as printed
  std::string help;      ///< one line: what it does and what it costs
  std::string group;     ///< heading it stands under
  /// Reads `text` (empty for a flag) into `settings`. Errors: invalid_argument, naming the option and what is valid.
  std::function<Status(Settings&, const std::string& text)> set;
};

/// The table, in the order of the documentation. A constant.
const std::vector<Option>& options();

/// docs/options.md, made from the table.
std::string options_markdown();

}  // namespace sluice::cli
