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

Bytes automatic_reserve(Bytes reserve, Bytes total) { return std::min(reserve, total / 8); }

Result<std::optional<Bytes>> resolve_budget(const Budget& budget, const Device& device, Bytes held, Bytes reserve) {
  if (budget.kind == Budget::Kind::bytes) return std::optional<Bytes>(budget.value);
  const MemoryView memory = device.memory();
  // Where free is more than there is, our own books say what is left of the total.
  if (memory.total == 0) {
    if (budget.kind == Budget::Kind::automatic) return std::optional<Bytes>();
    return fail(Code::invalid_argument,
                fmt::format("{} does not say how much memory it has: give the device budget as a size, for example 4GiB",
                            device.info().name));
  }
  const bool leave = budget.kind == Budget::Kind::leave_free;
  const Bytes keep = leave ? budget.value : automatic_reserve(reserve, memory.total);
  const Bytes free = std::min(memory.free, memory.total);
  // Nothing above the total: what is held may have been counted as free.
  const Bytes ours = std::min(free + std::min(held, memory.total), memory.total);
  if (leave && keep >= ours) {
    return fail(Code::invalid_argument, fmt::format("leaving {} free on {} is impossible: {} are free now", format_bytes(keep),
                                                    device.info().name, format_bytes(ours)));
  }
  return std::optional<Bytes>(ours - std::min(keep, ours));
}

Result<std::vector<std::optional<Bytes>>> resolve_budgets(const std::vector<BudgetQuestion>& questions, Bytes reserve) {
  std::vector<std::optional<Bytes>> budgets;
  for (const auto& q : questions) {
    // What the others of a pool hold may be used again as well.
    Bytes held = 0;
    for (const auto& other : questions)
      if (&other.device->ledger() == &q.device->ledger()) held += other.held;
    SLUICE_ASSIGN(const auto budget, resolve_budget(q.budget, *q.device, held, reserve));
    budgets.push_back(budget);
  }
  const auto alone = budgets;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    if (questions[i].budget.kind == Budget::Kind::bytes || questions[i].fallback || !alone[i]) continue;
    Bytes pool = 0, sized = 0, others = 0;
    for (std::size_t j = 0; j < questions.size(); ++j) {
      if (&questions[j].device->ledger() != &questions[i].device->ledger() || questions[j].fallback || !alone[j]) continue;
      if (questions[j].budget.kind == Budget::Kind::bytes) {
        sized += *alone[j];
      } else {
        pool = std::max(pool, *alone[j]);
        others += *alone[j];
      }
    }
    const Bytes left = pool - std::min(pool, sized);
    if (others > left)
      budgets[i] =
          static_cast<Bytes>(static_cast<double>(left) * (static_cast<double>(*alone[i]) / static_cast<double>(others)));
  }
  return budgets;
}

void follow_memory(const Budget& budget, std::optional<Bytes> now, Bytes reserve, DeviceMemory& memory) {
  const MemoryView view = memory.device().memory();
  if (!view.known || !now) return;
  const Bytes held = memory.taken();
  const auto before = memory.budget();
  // Free memory flutters. Half of what is to stay free takes that up, so what is or will be taken fits all the same.
  const Bytes keep = automatic_reserve(reserve, view.total);
  const Bytes flutter = (budget.kind == Budget::Kind::leave_free ? std::min(keep, budget.value) : keep) / 2;
  const bool changed = [&] {
    if (!before) return true;
    const Bytes taken = held > 0 ? held : *before;
    return taken > *now + flutter || *now < *before - *before / 4 || *now > *before + *before / 4;
  }();
  if (changed) memory.set_budget(now);
}

}  // namespace sluice
