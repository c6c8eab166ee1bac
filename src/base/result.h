#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace sluice {

/// The few kinds of failure a correct program meets. Each has one exit code in the CLI.
enum class Code {
  not_found,         ///< a file, tensor, name or device that was asked for is not there
  corrupt,           ///< foreign bytes that break their format
  unsupported,       ///< well formed, but not something this build can do
  invalid_argument,  ///< the caller asked for something contradictory or out of range
  over_budget,       ///< the ledger or the plan says no; `Error::needed` is the smallest budget that works
  device_oom,        ///< the ledger agreed, the driver did not
  device_failed,     ///< the device reported an error or died
  io,                ///< reading or writing failed; the message has path, offset and errno text
  cancelled,         ///< the caller's CancelToken was set
};

/// "over_budget" etc.
std::string_view code_name(Code code);

/// What went wrong, in a sentence that says what to do, with the numbers it rests on (0 where they mean nothing).
struct Error {
  Code code = Code::invalid_argument;
  std::string message;
  std::uint64_t needed = 0;     ///< bytes that would have been enough
  std::uint64_t available = 0;  ///< bytes there were
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

/// The unexpected side of a Result.
inline tl::unexpected<Error> fail(Code code, std::string message, std::uint64_t needed = 0, std::uint64_t available = 0) {
  return tl::unexpected<Error>(Error{code, std::move(message), needed, available});
}
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

/// The same error, with "`doing`: " in front of its message.
inline tl::unexpected<Error> fail_while(std::string_view doing, Error error) {
  error.message = std::string(doing) + ": " + error.message;
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace sluice

#define SLUICE_CONCAT_INNER(a, b) a##b
#define SLUICE_CONCAT(a, b) SLUICE_CONCAT_INNER(a, b)

/// Returns the error of `expr` (a Status or Result) from the enclosing function, if it has one.
#define SLUICE_TRY(expr)                                                                             \
  do {                                                                                               \
    if (auto try_result = (expr); !try_result) return ::sluice::fail(std::move(try_result).error()); \
  } while (false)

/// `SLUICE_ASSIGN(auto x, expr)`: x is the value of `expr`, or its error is returned.
#define SLUICE_ASSIGN(decl, expr) SLUICE_ASSIGN_INNER(SLUICE_CONCAT(try_result_, __LINE__), decl, expr)
#define SLUICE_ASSIGN_INNER(tmp, decl, expr)               \
  auto tmp = (expr);                                       \
  if (!tmp) return ::sluice::fail(std::move(tmp).error()); \
  decl = std::move(tmp).value()
