#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <string_view>

namespace sluice {

enum class LogLevel { debug, info, warning, error };

/// Where the library's lines go. The library prints nothing itself. A copyable value: an empty sink swallows lines.
/// Threads: may be called from any thread; the function given must be thread safe.
class LogSink {
 public:
  using Function = std::function<void(LogLevel, std::string_view)>;
  LogSink() = default;
  explicit LogSink(Function function, LogLevel least = LogLevel::info) : function_(std::move(function)), least_(least) {}

  template <typename... Args>
  void operator()(LogLevel level, fmt::format_string<Args...> format, Args&&... args) const {
    if (function_ && level >= least_) function_(level, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  Function function_;
  LogLevel least_ = LogLevel::info;
};

}  // namespace sluice
