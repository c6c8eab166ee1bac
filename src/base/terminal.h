#pragma once

namespace sluice {

/// Whether standard error / standard output is a terminal (false where the system cannot tell).
bool stderr_is_terminal();
bool stdout_is_terminal();

/// Columns of the terminal on standard error; 80 where unknown.
int terminal_columns();

}  // namespace sluice
