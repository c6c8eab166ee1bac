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
/// that the asker holds there already and may use again, clamp(free + held − what is to stay free, 0, total). None: nothing is
/// known and nothing was asked, so allocation itself decides. Errors: invalid_argument (leave_free of more than there is, or
/// where the total is unknown).
Result<std::optional<Bytes>> resolve_budget(const Budget& budget, const Device& device, Bytes held, Bytes reserve);

/// Moves a device's budget with its memory, asked before each request and between sweeps: down as soon as what is held eats up
/// half of what is to stay free, or a quarter less can be had; up only for a gain of a quarter, since a new budget loads
/// blocks anew. A budget in bytes stays, and so does any other while the device's report cannot be believed. Errors: those of
/// resolve_budget.
Status follow_memory(const Budget& budget, Bytes reserve, DeviceMemory& memory);

}  // namespace sluice
