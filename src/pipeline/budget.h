#pragma once

#include <optional>

#include "device/device.h"
#include "sluice/engine.h"

namespace sluice {

/// The bytes a budget means on a device as it is now: min(what the user allows, free − reserve); a number always wins over the
/// measurement. None: nothing is known and nothing was asked, so allocation itself decides.
/// Errors: invalid_argument (leave_free of more than there is, or where the total is unknown).
Result<std::optional<Bytes>> resolve_budget(const Budget& budget, const Device& device, Bytes reserve);

}  // namespace sluice
