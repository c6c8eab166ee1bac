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

/// The blocks of a stage that run on one device, and what they need there.
struct Section {
  std::size_t device = 0;  ///< index among the sites
  /// Of all blocks of the stage, so that ticks mean the same everywhere: those of other sections take time and no memory.
  StageCost cost;
};

/// The graphs of a stage's lanes, what they cost, and, once bound, where everything lies. Where its blocks are on several
/// devices it has a section for each; values that cross from one to another have a tensor on both.
/// Built without device memory, so that a plan can be made (and refused) before anything is allocated; bound once.
class Stage {
 public:
  /// Each block for the device that the store has it on. `sites`: by index of the store's devices; theirs outlive the stage.
  /// Errors: those of build_lane; invalid_argument without lanes; unsupported where a block's device lacks an operation (names
  /// block and operation).
  static Result<Stage> build(StageSpec spec, WeightStore& store, std::span<const Site> sites);

  const StageSpec& spec() const { return spec_; }
  const Model& model() const { return *model_; }
  std::size_t blocks() const { return model_->blocks.size(); }
  std::size_t lanes() const { return lanes_.size(); }
  /// In the order in which a sweep first comes to them.
  const std::vector<Section>& sections() const { return sections_; }
  std::size_t section_of(std::size_t block) const { return section_of_[block]; }
  std::size_t device_of(std::size_t block) const { return sections_[section_of_[block]].device; }
  const StageCost& cost(std::size_t section = 0) const { return sections_[section].cost; }
  const BlockCost& block_cost(std::size_t block) const { return cost(section_of_[block]).blocks[block]; }
  /// max over a section's blocks of weights + workspace + live state, from the declarations alone: what no engine can go below
  /// there.
  Bytes lower_bound(std::size_t section = 0) const;
  /// A section's block graphs once per distinct lane shape, for Device::measure_backend.
  std::vector<ggml_cgraph*> distinct_graphs(std::size_t section = 0) const;
  /// Bytes of the largest value that crosses from one section to another; 0: none does.
  Bytes largest_crossing() const;

  /// Where a section's slots, state and workspace lie.
  struct Ground {
    const StagePlan* plan = nullptr;  ///< copied
    const Arena* arena = nullptr;     ///< outlives the stage
    const Device* device = nullptr;
  };
  /// Gives every tensor its place: weights by `places` (per block), state and workspace by the plans from arena address 0.
  /// `grounds` is parallel to `sections`. Once per Stage. Errors: those of Arena::bind, WeightStore::bind_mapped and
  /// check_bound_nodes.
  Status bind(std::span<const Ground> grounds, std::vector<WeightPlace> places, WeightStore& store);
  bool bound() const { return bound_; }
  const StagePlan& plan(std::size_t section = 0) const { return plans_[section]; }
  const std::vector<WeightPlace>& places() const { return places_; }

  ggml_cgraph* graph(std::size_t lane, std::size_t block) const { return lanes_[lane].blocks[block].graph; }
  /// The tensors of a block's weights, in the first lane's graph: for tensor-by-tensor upload.
  const std::vector<ggml_tensor*>& weight_tensors(std::size_t block) const { return lanes_[0].blocks[block].weights; }
  /// One I8 tensor over the block's image; nullptr where nothing is copied.
  ggml_tensor* image_tensor(std::size_t block) const { return images_[block]; }
  /// The bound tensor of a value of a lane in a section; nullptr where it is not needed there.
  ggml_tensor* value_tensor(std::size_t section, std::size_t lane, Value value) const {
    return values_[section][lane][value.id];
  }
  /// The section in which a block writes the value.
  std::size_t home_of(Value value) const { return home_[value.id]; }
  const ValueFacts& facts(std::size_t lane, Value value) const { return lanes_[lane].values[value.id]; }
  /// A value that has to be on another device before a block can run.
  struct Arrival {
    Value value;
    std::size_t from = 0, to = 0;  ///< sections
  };
  const std::vector<Arrival>& arrivals(std::size_t block) const { return arrivals_[block]; }
  /// State whose last use is this block of this lane: its bytes mean nothing afterwards.
  struct Dead {
    std::size_t section = 0;
    Address address = 0;
    Bytes size = 0;
  };
  const std::vector<Dead>& dead_after(std::size_t lane, std::size_t block) const { return dead_[lane * blocks() + block]; }
  /// Tells a section's device that these arena bytes mean nothing any more (see Device::discard).
  void discard(std::size_t section, Address address, Bytes size) const {
    if (size > 0) arenas_[section]->discard(address, size);
  }

 private:
  /// A value's stay in a section's state; parallel to the section's StageCost::state.
  struct StateRef {
    std::size_t lane = 0;
    Value value;
    int last_block = -1;  ///< after which its bytes mean nothing; -1: they stay to the sweep's end
  };
  void divide(const WeightStore& store);
  void find_arrivals();
  void add_state(std::size_t lane);
  Status bind_block(std::size_t lane, std::size_t block, const std::vector<std::vector<Address>>& state, const Device& device,
                    WeightStore& store);

  StageSpec spec_;
  const Model* model_ = nullptr;
  std::vector<LaneGraph> lanes_;
  std::vector<WorkspaceLayout> workspaces_;  // [lane × blocks + block]
  std::vector<Section> sections_;
  std::vector<std::size_t> section_of_;         // [block]
  std::vector<std::size_t> home_;               // [value]
  std::vector<std::vector<Arrival>> arrivals_;  // [block]
  std::vector<std::vector<StateRef>> state_;    // [section]
  bool bound_ = false;
  std::vector<const Arena*> arenas_;  // borrowed from the session that bound the stage
  std::vector<StagePlan> plans_;      // [section]
  std::vector<WeightPlace> places_;
  GraphContext own_context_;  // image and value tensors
  std::vector<ggml_tensor*> images_;
  std::vector<std::vector<std::vector<ggml_tensor*>>> values_;  // [section][lane][value]
  std::vector<std::vector<Dead>> dead_;
};

}  // namespace sluice
