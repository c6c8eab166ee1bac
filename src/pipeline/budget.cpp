#include "pipeline/budget.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

Result<Budget> Budget::parse(const std::string& text) {
  if (text == "auto") return Budget{};
  const bool leave = !text.empty() && text[0] == '-';
  SLUICE_ASSIGN(const Bytes bytes, parse_bytes(leave ? std::string_view(text).substr(1) : std::string_view(text)));
  return Budget{leave ? Kind::leave_free : Kind::bytes, bytes};
}

Result<std::optional<Bytes>> resolve_budget(const Budget& budget, const Device& device, Bytes reserve) {
  if (budget.kind == Budget::Kind::bytes) return std::optional<Bytes>(budget.value);
  const MemoryView memory = device.memory();
  const Bytes keep = budget.kind == Budget::Kind::leave_free ? budget.value : reserve;
  if (!memory.known) {
    if (budget.kind == Budget::Kind::automatic) return std::optional<Bytes>();
    return fail(Code::invalid_argument,
                fmt::format("{} does not say how much memory it has: give the device budget as a size, for example 4GiB",
                            device.info().name));
  }
  const Bytes free = std::min(memory.free, memory.total);
  if (keep >= free && budget.kind == Budget::Kind::leave_free) {
    return fail(Code::invalid_argument, fmt::format("leaving {} free on {} is impossible: {} are free now", format_bytes(keep),
                                                    device.info().name, format_bytes(free)));
  }
  return std::optional<Bytes>(free - std::min(keep, free));
}

}  // namespace sluice
