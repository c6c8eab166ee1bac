#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "exec/graph_context.h"
#include "nn/model.h"
#include "nn/variants.h"
#include "residency/weight_store.h"

namespace sluice {

/// Four dimensions in ggml order.
using Shape = std::array<std::int64_t, 4>;

/// The shapes a lane's host-written inputs have, parallel to Model::inputs.
struct LaneShape {
  std::vector<Shape> inputs;
  bool operator==(const LaneShape&) const = default;
};

/// What a block's graph is built for: the device it is to run on, and that device's operator variants.
struct Site {
  Device* device = nullptr;
  const Variants* variants = nullptr;
  Bytes chunk = 0;  ///< one buffer's bytes there, a multiple of the alignment; 0: what the device prefers
};

/// One block's graph for one lane: metadata only, no memory until it is bound.
struct BlockGraph {
  GraphContext context;
  ggml_cgraph* graph = nullptr;       ///< inside `context`
  std::vector<ggml_tensor*> weights;  ///< parallel to Block::weights
  std::vector<ggml_tensor*> inputs;   ///< parallel to Block::inputs
  std::vector<ggml_tensor*> outputs;  ///< parallel to Block::outputs
};

/// What is known of a state tensor from the graphs: its shape, who writes it and who reads it last.
struct ValueFacts {
  Shape shape{1, 1, 1, 1};
  ggml_type type = GGML_TYPE_F32;
  Bytes size = 0;         ///< the buffer type's alloc size; the largest of all devices that write or read it
  int written_by = -1;    ///< block; -1: the host
  int last_read_by = -1;  ///< block; the last block for model outputs (the host reads them after the sweep)
  bool once_per_lane = false;
  bool output = false;  ///< the host reads it after the sweep
  bool used = false;
};

/// A model's block graphs for one lane.
struct LaneGraph {
  std::vector<BlockGraph> blocks;
  std::vector<ValueFacts> values;        ///< by Value::id
  std::vector<std::string> unsupported;  ///< per block: what its device cannot run, in words; empty: nothing
};

/// Builds every block's graph for the given input shapes; shapes flow from block to block. Every node is asked for on the
/// device of its block (Device::supports). Pure on its arguments; nothing is allocated on a device. Each context is as large as
/// its graph needs (capacity is counted in a first pass, never guessed). Errors: invalid_argument where a block breaks its
/// promises (an output that is a view, an input or not contiguous; a value read before it is written; a leaf that is neither
/// weight nor input).
Result<LaneGraph> build_lane(const Model& model, const LaneShape& shape,
                             const std::function<const BlockLayout&(std::size_t)>& layout,
                             const std::function<const Site&(std::size_t)>& site_of);

}  // namespace sluice
