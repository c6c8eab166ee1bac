#pragma once

namespace sluice {

/// Fills ggml's registry: backends that are plugins are found and loaded at the first call in the process, which may take
/// seconds on a machine with many. The registry is ggml's own and process-wide. Threads: any.
void load_backends();

}  // namespace sluice
