#pragma once

#include <string>
#include <vector>

#include "exec/lane_graph.h"
#include "exec/plan.h"
#include "exec/workspace.h"

namespace sluice {

/// A model to be swept: which component, how its lanes look, how often.
struct StageSpec {
  std::string name;  ///< "encode", "denoise", "decode"
  ComponentId component = 0;
  std::vector<LaneShape> lanes;
  int sweeps = 1;
  bool operator==(const StageSpec&) const = default;
};

/// Where a block's weights are bound in one plan.
struct WeightPlace {
  enum class Kind { none, streamed, resident, mapped } kind = Kind::none;
  Address address = 0;  ///< of the image, in the arena; not for none and mapped
  bool operator==(const WeightPlace&) const = default;
  /// In a plan: a resident whose shelf is found when the request is admitted.
  static constexpr Address kAnyShelf = UINT64_MAX;
  bool any_shelf() const { return kind == Kind::resident && address == kAnyShelf; }
};

/// The graphs of a stage's lanes, what they cost, and, once bound, where everything lies.
/// Built without device memory, so that a plan can be made (and refused) before anything is allocated; bound once.
class Stage {
 public:
  /// `chunk`: one buffer's bytes, a multiple of the alignment; 0: what the device prefers.
  /// Errors: those of build_lane; invalid_argument without lanes.
  static Result<Stage> build(StageSpec spec, WeightStore& store, Device& device, const Variants& variants, Bytes chunk = 0);

  const StageSpec& spec() const { return spec_; }
  const StageCost& cost() const { return cost_; }
  const Model& model() const { return *model_; }
  /// max over blocks of weights + workspace + live state, from the declarations alone: what no engine can go below.
  Bytes lower_bound() const;
  /// Every block graph once per distinct lane shape, for Device::measure_backend.
  std::vector<ggml_cgraph*> distinct_graphs() const;

  /// Gives every tensor its place: weights by `places` (per block), state and workspace by `plan` from arena address 0.
  /// Once per Stage. Errors: those of Arena::bind and WeightStore::bind_mapped.
  Status bind(const StagePlan& plan, std::vector<WeightPlace> places, const Arena& arena, WeightStore& store);
  bool bound() const { return bound_; }
  const StagePlan& plan() const { return plan_; }
  const std::vector<WeightPlace>& places() const { return places_; }

  ggml_cgraph* graph(std::size_t lane, std::size_t block) const { return lanes_[lane].blocks[block].graph; }
  /// The tensors of a block's weights, in the first lane's graph: for tensor-by-tensor upload.
  const std::vector<ggml_tensor*>& weight_tensors(std::size_t block) const { return lanes_[0].blocks[block].weights; }
  /// One I8 tensor over the block's image; nullptr where nothing is copied.
  ggml_tensor* image_tensor(std::size_t block) const { return images_[block]; }
  /// The bound tensor of a host-written input or host-read output of a lane.
  ggml_tensor* value_tensor(std::size_t lane, Value value) const { return values_[lane][value.id]; }
  const ValueFacts& facts(std::size_t lane, Value value) const { return lanes_[lane].values[value.id]; }
  /// State whose last reader is this block of this lane: its bytes mean nothing afterwards.
  struct Dead {
    Address address = 0;
    Bytes size = 0;
  };
  const std::vector<Dead>& dead_after(std::size_t lane, std::size_t block) const { return dead_[lane * blocks() + block]; }
  std::size_t blocks() const { return model_->blocks.size(); }
  /// Tells the device that these arena bytes mean nothing any more (see Device::discard).
  void discard(Address address, Bytes size) const {
    if (size > 0) arena_->discard(address, size);
  }

 private:
  struct StateRef {
    std::size_t lane = 0;
    Value value;
  };
  StageSpec spec_;
  const Model* model_ = nullptr;
  std::vector<LaneGraph> lanes_;
  std::vector<WorkspaceLayout> workspaces_;  // [lane × blocks + block]
  StageCost cost_;
  std::vector<StateRef> state_;  // parallel to cost_.state
  bool bound_ = false;
  const Arena* arena_ = nullptr;  // borrowed from the session that bound the stage
  StagePlan plan_;
  std::vector<WeightPlace> places_;
  GraphContext own_context_;  // image and value tensors
  std::vector<ggml_tensor*> images_;
  std::vector<std::vector<ggml_tensor*>> values_;
  std::vector<std::vector<Dead>> dead_;
};

}  // namespace sluice
