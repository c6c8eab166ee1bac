#pragma once

#include <optional>

#include "device/device.h"
#include "residency/device_memory.h"
#include "sluice/engine.h"

namespace sluice {

/// What stays free under an automatic budget: `reserve`, but never more than an eighth of the device, so that small devices
/// can be used too. Pure.
Bytes automatic_reserve(Bytes reserve, Bytes total);

/// The bytes a budget means on a device as it is now. A number always wins over the measurement. Else, with `held` the bytes
/// that the asker holds there already and may use again, clamp(free + held − what is to stay free, 0, total), where free is by
/// our own books if the report says more than the total. None: the total is not known and nothing was asked, so allocation
/// itself decides. Errors: invalid_argument (leave_free of more than there is, or where the total is unknown).
Result<std::optional<Bytes>> resolve_budget(const Budget& budget, const Device& device, Bytes held, Bytes reserve);

/// Whose budget is asked for.
struct BudgetQuestion {
  Budget budget;
  Device* device = nullptr;
  Bytes held = 0;         ///< as in resolve_budget
  bool fallback = false;  ///< hardly ever used: takes nothing from the others of its pool
};
/// The budgets of several devices. Those that have one ledger (an integrated device and the CPU) live in one pool, which is
/// counted once: what they mean together is no more than what it has, the bytes of sized budgets are taken off first, and the
/// others share what is left in the proportion of what each would have alone. Errors: those of resolve_budget.
Result<std::vector<std::optional<Bytes>>> resolve_budgets(const std::vector<BudgetQuestion>& questions, Bytes reserve);

/// Moves a device's budget that is no number of bytes with its memory, asked before each request and between sweeps. `now`:
/// what it means now. Down as soon as what is held eats up half of what is to stay free, or a quarter less can be had; up only
/// for a gain of a quarter, since a new budget loads blocks anew. It stays while the device's report cannot be believed.
void follow_memory(const Budget& budget, std::optional<Bytes> now, Bytes reserve, DeviceMemory& memory);

}  // namespace sluice
