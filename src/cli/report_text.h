#pragma once

#include <string>

#include "sluice/engine.h"

namespace sluice::cli {

/// What lives where and why, peaks by kind, times and bytes per step, smallest and full budget. `every_block`: no rows are
/// joined.
std::string plan_text(const PlanReport& plan, bool every_block);

/// Where the memory went, stage by stage, with the peak against the budget, what was copied and how long it took.
std::string memory_table(const Generated& generated);

std::string file_text(const FileSummary& summary);

}  // namespace sluice::cli
