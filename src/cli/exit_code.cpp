#include "cli/exit_code.h"

#include <fmt/format.h>

#include "base/bytes.h"

namespace sluice::cli {

Exit exit_code(Code code) {
  switch (code) {
    case Code::invalid_argument: return Exit::usage;
    case Code::over_budget: return Exit::does_not_fit;
    case Code::not_found:
    case Code::corrupt:
    case Code::unsupported:
    case Code::io: return Exit::bad_file;
    case Code::device_oom:
    case Code::device_failed: return Exit::device_failure;
    case Code::cancelled: return Exit::cancelled;
  }
  return Exit::device_failure;
}

namespace {

std::string advice(const Error& error) {
  switch (error.code) {
    case Code::over_budget:
      if (error.message.find("host") != std::string::npos) {
        return error.needed ? fmt::format("raise --host-budget to {} or choose --tier mapped or --tier disk", error.needed)
                            : "raise --host-budget or choose --tier mapped or --tier disk";
      }
      if (error.needed == 0) return "raise --device-budget or lower --width/--height";
      // Of several devices the message names the one to raise.
      if (const auto at = error.message.find("raise --device-budget to "); at != std::string::npos) {
        const auto word = error.message.substr(at, error.message.find(' ', at + 25) - at);
        if (word.find('=') != std::string::npos)
          return "that number holds for the other devices' budgets as they are; --place puts a component on another device";
      }
      return fmt::format("needs {} ({} bytes), budget {} ({} bytes): raise --device-budget to {} or lower --width/--height",
                         format_bytes(error.needed), error.needed, format_bytes(error.available), error.available,
                         error.needed);
    case Code::device_oom:
      return "the device has less free memory than it reported: close other programs on it or set a lower --device-budget";
    case Code::device_failed: return "try again; if it happens again, choose another --device (`sluice devices` lists them)";
    case Code::corrupt: return "fetch the file again and look at it with `sluice inspect`";
    case Code::unsupported: return "`sluice inspect` shows what is in the file";
    case Code::not_found: return "check the path";
    case Code::io: return "check that the file can be read, that its folder can be written, and that the disk is not full";
    case Code::invalid_argument: return "`sluice --help` and docs/options.md list the options";
    case Code::cancelled: return "nothing was written";
  }
  return {};
}

}  // namespace

std::string explain(const Error& error) {
  return fmt::format("{}\n  {}", error.message.empty() ? std::string(code_name(error.code)) : error.message, advice(error));
}

}  // namespace sluice::cli
