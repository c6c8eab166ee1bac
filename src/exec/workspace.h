#pragma once

#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "ggml-backend.h"

namespace sluice {

/// Places for the inner nodes of one block graph, relative to the workspace's start.
struct WorkspaceLayout {
  struct Node {
    ggml_tensor* tensor = nullptr;
    Bytes offset = 0;
  };
  std::vector<Node> nodes;  ///< every node that needs memory of its own (no views, no outputs already bound elsewhere)
  Bytes size = 0;
  Bytes largest = 0;  ///< largest single node: what must be contiguous in one device buffer
};

/// Places a graph's nodes by lifetime: a node's bytes are free again after its last reader (through any chain of views), and an
/// elementwise node may take over the bytes of an operand that dies with it, where ggml computes that operator in place.
/// Nodes in `elsewhere` (block outputs, which live in the state) and leaves (weights, inputs) are not placed.
/// A node flagged as graph output keeps its bytes to the end. If `size` > `chunk`, the layout is valid at multiples of `chunk`
/// only; no node crosses one, unless it is larger than a chunk itself (`largest` tells). Sizes are the buffer type's alloc
/// sizes; offsets are multiples of its alignment and of `alignment`. Pure on the graph; nothing is allocated. Goal: ≤ 1.02 ×
/// what ggml's own allocator needs.
WorkspaceLayout place_workspace(ggml_cgraph* graph, const std::vector<ggml_tensor*>& elsewhere, ggml_backend_buffer_type_t type,
                                Bytes chunk, Bytes alignment = 0);

}  // namespace sluice
