#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/result.h"
#include "ggml-backend.h"

namespace sluice {

/// Identifies what a backend has to prepare for a graph: operators with their parameters, and types, shapes and strides of all
/// tensors, in order. Not where they lie, nor their names. Pure.
std::uint64_t graph_signature(const ggml_cgraph* graph);

/// Device memory that `warm_up` takes for this graph: its leaves and, where one may follow another in the same place, its
/// nodes. Pure on the graph, which needs no memory bound.
Bytes warm_up_bytes(ggml_backend_buffer_type_t buffer_type, ggml_cgraph* graph);

/// Computes an unbound graph once, so that the backend makes all that it will keep for such graphs: pipelines, pools, scratch.
/// All leaves are zero: indices stay in range. The memory is taken from the backend's buffer type for that while, the caller
/// holds a lease of warm_up_bytes(); afterwards the graph is unbound as before and the memory is gone.
/// Errors: device_oom (no memory for it), device_failed, invalid_argument (a tensor has memory already; nothing was done).
Status warm_up(ggml_backend_t backend, ggml_backend_buffer_type_t buffer_type, ggml_cgraph* graph);

}  // namespace sluice
