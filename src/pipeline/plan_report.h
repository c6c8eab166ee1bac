#pragma once

#include "exec/session.h"
#include "sluice/engine.h"

namespace sluice {

/// A prepared request's plan in the public form. `smallest` and `full` include the backend account.
PlanReport plan_report(const Prepared& prepared, const WeightStore& store, const Device& device, std::optional<Bytes> budget);

}  // namespace sluice
