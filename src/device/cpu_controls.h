#pragma once

#include "base/bytes.h"
#include "base/result.h"
#include "ggml-backend.h"

namespace sluice {

/// What ggml's CPU backend offers beyond the common backend interface. All through its registry entry, since the CPU may be a
/// plugin whose functions cannot be linked. Absent functions are null.
struct CpuControls {
  void (*set_n_threads)(ggml_backend_t, int) = nullptr;
  void (*set_abort_callback)(ggml_backend_t, ggml_abort_callback, void*) = nullptr;
  ggml_threadpool* (*threadpool_new)(ggml_threadpool_params*) = nullptr;
  void (*threadpool_free)(ggml_threadpool*) = nullptr;
  void (*set_threadpool)(ggml_backend_t, ggml_threadpool*) = nullptr;
  void* graph_plan = nullptr;  ///< ggml_graph_plan, found beside the others

  static CpuControls of(ggml_backend_reg_t reg);

  /// The work buffer that the backend will make for this graph with `threads` threads: what ggml_graph_plan says, which the
  /// backend itself asks before it computes. Pure on the graph, which needs no memory bound. Errors: unsupported (function not
  /// found).
  Result<Bytes> work_size(const ggml_cgraph* graph, int threads) const;
};

}  // namespace sluice
