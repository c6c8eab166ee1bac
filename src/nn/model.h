#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ggml.h"

namespace sluice {

class GraphBuilder;

/// What a weight is for; decides the types it may have on a device.
enum class WeightRole {
  vector,  ///< 1-D scales and biases: always f32 on the device
  matrix,  ///< ggml_mul_mat's first operand: kept in the file's type where the device multiplies with it
  kernel,  ///< convolution kernel [KW, KH, IC, OC]: f16 or f32
  dense,   ///< added or multiplied elementwise (position tables): f32
};

/// A weight as a block declares it: no storage. `shape` in ggml order, 1 to 4 dimensions.
struct WeightDecl {
  std::string name;  ///< in the component's own naming, e.g. "input_blocks.1.0.in_layers.2.weight"
  std::vector<std::int64_t> shape;
  WeightRole role = WeightRole::matrix;
};

/// A tensor that crosses block boundaries, by handle. Each is written once (by the host or by one block): lifetimes are facts.
struct Value {
  std::uint32_t id = UINT32_MAX;
  bool operator==(const Value&) const = default;
};

/// How far an operator looks beyond the pixel it makes; decides how a stage can be cut into stripes.
enum class Reach {
  pointwise,         ///< the pixel itself
  local,             ///< a halo of `Operator::halo` pixels (convolutions)
  frame_statistics,  ///< sums over the whole frame (group norm)
  frame_attention,   ///< every pixel sees every pixel
};
struct Operator {
  Reach reach = Reach::pointwise;
  int halo = 0;
  double scale = 1;  ///< output rows per input row (2 for upsampling, 0.5 for stride 2)
};

/// The unit of streaming: its weights travel together, its graph runs between two boundaries.
struct Block {
  std::string name;  ///< e.g. "input_blocks.1.1 attn1"
  std::vector<WeightDecl> weights;
  std::vector<Value> inputs;        ///< in the order `forward` gets them
  std::vector<Value> outputs;       ///< in the order `forward` returns them
  std::vector<Operator> operators;  ///< what it does to the frame, in order
  /// Adds the block's nodes. `inputs[i]` is the tensor of this->inputs[i]. Each returned tensor is a real node of the block
  /// (contiguous, not a view, not an input). Pure: same shapes, same graph, in every placement.
  std::function<std::vector<ggml_tensor*>(GraphBuilder&, const std::vector<ggml_tensor*>& inputs)> forward;
};

/// How often the host writes a model input.
enum class Refresh { once_per_lane, every_sweep };
struct Input {
  Value value;
  std::string name;
  ggml_type type = GGML_TYPE_F32;
  Refresh refresh = Refresh::every_sweep;
};

/// A network as a list of blocks, in the order they run. Knows nothing of how it is run.
struct Model {
  std::string name;  ///< "denoiser", "text", "decoder", ...
  std::vector<Block> blocks;
  std::vector<Input> inputs;   ///< written by the host
  std::vector<Value> outputs;  ///< read by the host after a sweep; each produced by a block
  std::uint32_t values = 0;    ///< number of handles given out

  Value new_value() { return Value{values++}; }
  Value add_input(std::string input_name, Refresh refresh, ggml_type type = GGML_TYPE_F32) {
    inputs.push_back({new_value(), std::move(input_name), type, refresh});
    return inputs.back().value;
  }
};

}  // namespace sluice
