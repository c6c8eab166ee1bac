#include "io/read_fully.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace sluice {

Status read_fully(const std::string& path, Bytes offset, std::span<std::byte> out, const ReadAttempt& attempt) {
  while (!out.empty()) {
    const std::int64_t got = attempt(out, offset);
    if (got == -EINTR) continue;
    if (got < 0)
      return fail(Code::io, fmt::format("{}: reading {} bytes at offset {} failed: {}", path, out.size(), offset,
                                        std::generic_category().message(static_cast<int>(-got))));
    if (got == 0)
      return fail(Code::io,
                  fmt::format("{}: the file ends at offset {}, {} bytes more were to be read (was it truncated?)", path, offset,
                              out.size()),
                  offset + out.size(), offset);
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<Bytes>(got);
  }
  return {};
}

}  // namespace sluice
