#pragma once

#include "exec/session.h"
#include "sluice/engine.h"

namespace sluice {

/// A prepared request's plan in the public form. Bytes are those of the device that sweeps most; `smallest` and `full` include
/// its backend account.
PlanReport plan_report(const Prepared& prepared, const WeightStore& store, Session& session);

}  // namespace sluice
