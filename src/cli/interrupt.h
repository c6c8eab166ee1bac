#pragma once

#include "base/cancel.h"

namespace sluice::cli {

/// From now on Ctrl-C and SIGTERM set `token`; a second one ends the program at once. Call once.
void cancel_on_interrupt(const CancelToken& token);

}  // namespace sluice::cli
