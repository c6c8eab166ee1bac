#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "exec/request_plan.h"
#include "exec/test_null_device.h"
#include "residency/device_memory.h"

// Plans and residency at the sizes of real models, from cost fixtures (tools/plans/make_fixtures.py says how they are made).

using namespace sluice;
using nlohmann::json;

namespace {

constexpr const char* kFolder = SLUICE_SOURCE_DIR "/tests/golden/plans/";

json read_json(const std::string& name) {
  std::ifstream file(kFolder + name);
  REQUIRE_MESSAGE(file.good(), name);
  return json::parse(file);
}

/// A fixture's request: its stages are components 0, 1, 2.
struct Case {
  std::vector<std::string> names;
  std::vector<StageNeed> needs;
};

Case read_case(const std::string& name, double link_bytes_per_s = 0) {
  const json fixture = read_json(name + ".json");
  Case c;
  for (const auto& stage : fixture["stages"]) {
    c.names.push_back(stage["name"]);
    StageNeed need;
    need.component = static_cast<ComponentId>(c.needs.size());
    StageCost& cost = need.cost;
    cost.alignment = fixture["alignment"];
    cost.chunk = fixture["chunk"];
    cost.link_bytes_per_s = link_bytes_per_s > 0 ? link_bytes_per_s : fixture["link_bytes_per_s"].get<double>();
    cost.link_latency_s = fixture["link_latency_s"];
    cost.lanes = stage["lanes"];
    cost.sweeps = stage["sweeps"];
    for (const auto& run : stage["blocks"])
      for (int i = 0; i < run["times"].get<int>(); ++i)
        for (const auto& b : run["blocks"])
          cost.blocks.push_back({.weights = b["weights"],
                                 .workspace = b["workspace"],
                                 .contiguous = b["contiguous"],
                                 .compute_s = b["compute_s"]});
    const int blocks = static_cast<int>(cost.blocks.size());
    for (const auto& s : stage["state"]) {
      const int from = s[1], to = s[2];
      for (int i = 0; i < s[3].get<int>(); ++i)
        for (int lane = 0; lane < cost.lanes; ++lane) {
          // An output of the last block is read when all lanes are through.
          const bool to_the_end = to < 0 || to + i >= blocks - 1;
          cost.state.push_back({s[0], to < 0 ? 0 : (from + i) * cost.lanes + lane,
                                to_the_end ? blocks * cost.lanes - 1 : (to + i) * cost.lanes + lane});
        }
    }
    need.mappable.assign(cost.blocks.size(), false);
    c.needs.push_back(std::move(need));
  }
  return c;
}

Bytes size_of(const StageNeed& need, std::size_t block) {
  return align_up(need.cost.blocks[block].weights, need.cost.alignment);
}

Bytes weights_of(const StageNeed& need) {
  Bytes sum = 0;
  for (std::size_t b = 0; b < need.cost.blocks.size(); ++b) sum += size_of(need, b);
  return sum;
}

bool within_one_percent(double got, double want) { return std::abs(got - want) <= 0.01 * std::abs(want); }

json numbers_of(const Case& c, const RequestPlan& plan) {
  json out{{"smallest", plan.smallest}, {"full", plan.full}, {"zone", plan.zone}, {"shelves", plan.shelves}};
  for (std::size_t s = 0; s < c.needs.size(); ++s) {
    const StagePlan& p = plan.stages[s].plan;
    out[c.names[s]] = {{"transient", p.transient},
                       {"resident", p.resident_bytes},
                       {"residents", std::count(p.resident.begin(), p.resident.end(), true)},
                       {"bytes_per_sweep", p.bytes_per_sweep},
                       {"step_over_roofline", p.step_s / p.roofline_s}};
  }
  return out;
}

/// Says each number that is more than one percent off.
void check_numbers(const json& got, const json& want, const std::string& path) {
  CHECK_MESSAGE(got.size() == want.size(), path);
  for (const auto& [key, value] : want.items()) {
    REQUIRE_MESSAGE(got.contains(key), path << "." << key);
    if (value.is_object())
      check_numbers(got[key], value, path + "." + key);
    else
      CHECK_MESSAGE(within_one_percent(got[key], value),
                    path << "." << key << ": got " << got[key].dump() << ", golden " << value.dump());
  }
}

/// A file that is never read.
class NoBytes final : public File {
 public:
  explicit NoBytes(Bytes size) : size_(size) {}
  const std::string& path() const override { return path_; }
  Bytes size() const override { return size_; }
  Status read_at(Bytes, std::span<std::byte>) const override { return fail(Code::io, "nothing is read here"); }
  Result<std::shared_ptr<const Mapping>> map() const override { return fail(Code::io, "nothing is mapped here"); }
  Status unchanged() const override { return {}; }
  Bytes bytes_read() const override { return 0; }

 private:
  std::string path_ = "no-bytes";
  Bytes size_;
};

/// A component whose blocks are as large as a stage's: one f32 vector each.
struct Weights {
  Model model;
  std::vector<std::vector<WeightSource>> sources;

  Weights(const std::string& name, const StageNeed& need) {
    auto file = std::make_shared<TensorFile>();
    file->format = "safetensors";
    model.name = name;
    Bytes offset = 0;
    for (std::size_t b = 0; b < need.cost.blocks.size(); ++b) {
      const Bytes size = size_of(need, b);
      const auto elements = static_cast<std::int64_t>(size / 4);
      const std::string weight = "w" + std::to_string(b);
      model.blocks.push_back({.name = "block " + std::to_string(b)});
      sources.emplace_back();
      if (size == 0) continue;
      model.blocks.back().weights.push_back({weight, {elements}, WeightRole::vector});
      file->index.emplace(weight, file->tensors.size());
      file->tensors.push_back({weight, DType::f32, GGML_TYPE_F32, {elements}, offset, size});
      offset += size;
    }
    file->file = std::make_shared<NoBytes>(offset);
    for (std::size_t b = 0; b < model.blocks.size(); ++b)
      for (const auto& w : model.blocks[b].weights) sources[b].push_back({file, file->index.at(w.name), 0, -1});
  }
};

/// A device of true size with its books, for any number of models.
struct World {
  World(const StageCost& like, Bytes bytes)
      : budget(bytes),
        device(like.alignment, like.chunk),
        store(device, {HostTier::disk, std::nullopt, {}}),
        memory(device, store, {.budget = bytes, .on_move = [this](const Move& move) { moves.push_back(move); }}) {}

  Bytes budget;
  test::NullDevice device;
  std::vector<std::unique_ptr<Weights>> weights;  // before the store, which refers to their models
  WeightStore store;
  std::vector<Move> moves;
  DeviceMemory memory;
};

/// A model's requests, as a session makes them: admission, then each stage clears what lies where it works and brings its
/// residents. No byte is moved.
class Story {
 public:
  Story(World& world, const Case& c, const std::string& model = "model") : case_(c), world_(world), memory_(world.memory) {
    for (std::size_t s = 0; s < c.needs.size(); ++s) {
      const Weights& w = *world.weights.emplace_back(std::make_unique<Weights>(model + " " + c.names[s], c.needs[s]));
      const auto id = world.store.add({w.model.name, &w.model, w.sources});
      REQUIRE_MESSAGE(id.has_value(), id.error().message);
      ids_.push_back(*id);
      for (std::uint32_t b = 0; b < w.model.blocks.size(); ++b)
        REQUIRE(align_up(world.store.layout({*id, b}).size, c.needs[0].cost.alignment) == size_of(c.needs[s], b));
    }
    auto plan = plan_request(c.needs, world.budget, {});
    REQUIRE_MESSAGE(plan.has_value(), plan.error().message);
    plan_ = std::move(*plan);
  }

  /// What a request moved.
  struct Moved {
    Bytes loaded = 0;                           ///< residents brought
    Bytes given_up = 0;                         ///< residents that left
    Bytes streamed = 0;                         ///< copied through slots, all sweeps
    std::vector<Bytes> loaded_by, given_up_by;  ///< per stage's component
    std::set<BlockId> brought, left;
  };

  /// `skip`: stages that do not run (the same prompt is not encoded again).
  Moved request(const std::vector<bool>& skip = {}) {
    world_.moves.clear();
    moved_ = {};
    moved_.loaded_by.assign(ids_.size(), 0);
    moved_.given_up_by.assign(ids_.size(), 0);
    const auto skipped = [&](std::size_t s) { return !skip.empty() && skip[s]; };
    const auto turn = memory_.take_turn(CancelToken{});
    REQUIRE(turn.has_value());
    const auto admitted = memory_.admit(need(skip));
    REQUIRE_MESSAGE(admitted.has_value(), admitted.error().message);
    check_books();
    for (std::size_t s = 0; s < ids_.size(); ++s) {
      if (skipped(s)) continue;
      run(s);
      check_books();
    }
    memory_.trim();
    check_books();
    for (const Move& move : world_.moves) note(move);
    return moved_;
  }

  const RequestPlan& plan() const { return plan_; }
  /// Of a stage's component, on the device now.
  Bytes resident(std::size_t s) const {
    Bytes bytes = 0;
    for (const auto& o : memory_.occupants())
      if (o.loaded && o.block.component == ids_[s]) bytes += o.size;
    return bytes;
  }

 private:
  DeviceMemory::Need need(const std::vector<bool>& skip) const {
    DeviceMemory::Need need;
    need.zone = plan_.zone;
    need.workspace = plan_.workspace();
    need.components = ids_;
    std::vector<std::size_t> order(ids_.size());
    for (std::size_t s = 0; s < order.size(); ++s) order[s] = s;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return case_.needs[a].cost.sweeps > case_.needs[b].cost.sweeps; });
    for (const std::size_t s : order) {
      const auto& give_up = plan_.stages[s].plan.give_up;
      for (auto b = give_up.rbegin(); b != give_up.rend(); ++b) {
        const BlockId id{ids_[s], *b};
        if (!skip.empty() && skip[s] && !memory_.resident(id)) continue;
        using Where = DeviceMemory::Wanted::Where;
        const WeightPlace& place = plan_.stages[s].places[*b];
        need.wanted.push_back({id, size_of(case_.needs[s], *b), place.any_shelf() ? Where::shelf : Where::zone, place.address});
      }
    }
    return need;
  }

  void run(std::size_t s) {
    const StagePlacement& stage = plan_.stages[s];
    memory_.clear_zone(0, stage.plan.transient, Leaving::workspace);
    std::vector<std::pair<BlockId, Address>> to_bring;
    for (const std::uint32_t b : stage.plan.give_up) {
      const BlockId id{ids_[s], b};
      const auto place = memory_.place(id);
      const bool shelf = place && Arena::on_shelf(*place);
      REQUIRE((shelf || !stage.places[b].any_shelf()));  // whatever the plan wants on a shelf has one
      const Address at = shelf ? *place : stage.places[b].address;
      if (memory_.resident(id) == at) continue;
      if (!shelf) {
        memory_.give_up(id, Leaving::room);
        memory_.clear_zone(at, at + size_of(case_.needs[s], b), Leaving::room);
      }
      to_bring.emplace_back(id, at);
    }
    memory_.touch(ids_[s]);
    for (const auto& [id, at] : to_bring) memory_.set_resident(id, at);
    moved_.streamed += stage.plan.bytes_per_sweep * static_cast<Bytes>(case_.needs[s].cost.sweeps);
    // Everything this stage's plan keeps is there while it runs.
    for (const std::uint32_t b : stage.plan.give_up) CHECK(memory_.resident({ids_[s], b}).has_value());
  }

  void check_books() const {
    CHECK(memory_.taken() == world_.device.allocated());
    CHECK(world_.device.allocated() <= world_.budget);
    Bytes shelved = 0;
    std::vector<std::pair<Address, Address>> ranges;
    for (const auto& o : memory_.occupants()) ranges.emplace_back(o.at, o.at + o.size), shelved += o.size;
    std::sort(ranges.begin(), ranges.end());
    bool disjoint = true;
    for (std::size_t i = 1; i < ranges.size(); ++i) disjoint = disjoint && ranges[i - 1].second <= ranges[i].first;
    CHECK(disjoint);
    CHECK(shelved <= world_.device.allocated());
  }

  void note(const Move& move) {
    const bool left = move.kind == Move::Kind::given_up || move.kind == Move::Kind::demoted;
    if (left) moved_.given_up += move.size;
    const auto at = std::find(ids_.begin(), ids_.end(), move.block.component);
    if (at == ids_.end()) return;
    const auto s = static_cast<std::size_t>(at - ids_.begin());
    if (move.kind == Move::Kind::loaded) {
      moved_.loaded += move.size;
      moved_.loaded_by[s] += move.size;
      moved_.brought.insert(move.block);
    } else if (left) {
      moved_.given_up_by[s] += move.size;
      moved_.left.insert(move.block);
    }
  }

  const Case& case_;
  World& world_;
  DeviceMemory& memory_;
  Moved moved_;
  std::vector<ComponentId> ids_;
  RequestPlan plan_;
};

/// Everything that can leave leaves; what the device still holds.
Bytes after_unload(World& world) {
  world.memory.unload(Leaving::idle);
  return world.device.allocated();
}

constexpr std::size_t kDenoise = 1, kDecode = 2;

}  // namespace

TEST_CASE("true sizes: golden plans") {
  const json golden = read_json("golden.json");
  REQUIRE(golden["plans"].size() >= 10);
  for (const auto& entry : golden["plans"]) {
    const std::string name = entry["case"];
    const Bytes budget = entry["budget"];
    CAPTURE(name);
    CAPTURE(budget);
    const Case c = read_case(name, entry.value("link_bytes_per_s", 0.0));
    const auto plan = plan_request(c.needs, budget, {});
    REQUIRE_MESSAGE(plan.has_value(), plan.error().message);
    CHECK(plan->taken() <= budget);
    const json got = numbers_of(c, *plan);
    INFO(got.dump());
    check_numbers(got, entry["numbers"], name);
    // The number a refusal names works, and one unit less does not.
    CHECK(plan_request(c.needs, plan->smallest, {}).has_value());
    const auto refused = plan_request(c.needs, plan->smallest - 1, {});
    REQUIRE(!refused.has_value());
    CHECK(refused.error().needed == plan->smallest);
  }
}

TEST_CASE("true sizes: without pressure nothing moves in a second request") {
  struct Example {
    const char* name;
    Bytes budget;
  };
  // 1024 x 1024 in 12 GiB, and larger models in 24.
  for (const auto& [name, budget] :
       {Example{"sdxl", 12 * GiB}, Example{"decode_pressure", 24 * GiB}, Example{"z_image_q8", 24 * GiB}}) {
    CAPTURE(name);
    const Case c = read_case(name);
    World world(c.needs[0].cost, budget);
    Story story(world, c);
    REQUIRE(story.plan().full <= budget);
    const auto first = story.request();
    Bytes all = 0;
    for (const auto& need : c.needs) all += weights_of(need);
    CHECK(first.loaded == all);
    CHECK(first.given_up == 0);
    CHECK(first.streamed == 0);
    const auto second = story.request({true, false, false});
    CHECK(second.loaded == 0);
    CHECK(second.given_up == 0);
    CHECK(second.streamed == 0);
    CHECK(world.device.high_water() == story.plan().full);
    CHECK(after_unload(world) == 0);
  }
}

TEST_CASE("true sizes: a decode takes what it needs, the next request reloads only what was given up") {
  const json golden = read_json("golden.json");
  REQUIRE(golden["given_up"].size() >= 5);
  for (const auto& entry : golden["given_up"]) {
    const std::string name = entry["case"];
    const Bytes budget = entry["budget"];
    CAPTURE(name);
    CAPTURE(budget);
    const Case c = read_case(name);
    World world(c.needs[0].cost, budget);
    Story story(world, c);
    const RequestPlan& plan = story.plan();
    REQUIRE(plan.full > budget);
    Bytes block = 0, widest = 0;
    for (const auto& b : c.needs[kDenoise].cost.blocks) block = std::max(block, b.weights);
    for (const auto& b : c.needs[kDecode].cost.blocks) widest = std::max(widest, b.workspace);
    // Full frame: the decode has the workspace its widest block asks for.
    CHECK(plan.stages[kDecode].plan.transient >= widest);
    const auto first = story.request();
    const Bytes resident = plan.stages[kDenoise].plan.resident_bytes;
    CHECK(story.resident(kDenoise) == resident - first.given_up_by[kDenoise]);
    CHECK_MESSAGE(within_one_percent(static_cast<double>(first.given_up), entry["bytes"]),
                  "given up " << first.given_up << ", golden " << entry["bytes"].dump());
    const Bytes needed = plan.stages[kDecode].plan.transient + resident + story.resident(0) + story.resident(kDecode);
    const Bytes missing = needed > budget ? needed - budget : 0;
    CHECK(first.given_up_by[kDenoise] <= missing + block);
    const auto second = story.request({true, false, false});
    CHECK(second.loaded_by[kDenoise] == first.given_up_by[kDenoise]);
    bool only_given_up = true;
    for (const BlockId id : second.brought) only_given_up = only_given_up && first.left.contains(id);
    CHECK(only_given_up);
    // From here on every request is like the one before.
    const auto third = story.request({true, false, false});
    CHECK(third.brought == second.brought);
    CHECK(third.left == second.left);
    CHECK(world.device.high_water() <= budget);
    CHECK(after_unload(world) == 0);
  }
}

TEST_CASE("true sizes: two denoisers give up what is missing, and nothing where both fit") {
  const Case c = read_case("decode_pressure");
  const auto alone = plan_request(c.needs, 64 * GiB, {});
  REQUIRE(alone.has_value());
  Bytes weights = 0, block = 0;
  for (const auto& need : c.needs) {
    weights += weights_of(need);
    for (const auto& b : need.cost.blocks) block = std::max(block, b.weights);
  }
  // Both whole beside one zone; less by one and by three GiB; one alone.
  for (const Bytes missing : {Bytes{0}, GiB, 3 * GiB, weights}) {
    CAPTURE(missing);
    World world(c.needs[0].cost, alone->full + weights - missing);
    Story high(world, c, "high"), low(world, c, "low");
    CHECK(high.request().given_up == 0);
    for (int i = 0; i < 3; ++i) {
      CAPTURE(i);
      Story& next = i % 2 == 0 ? low : high;
      const auto moved = next.request(i == 0 ? std::vector<bool>{} : std::vector<bool>{true, false, false});
      CHECK(moved.given_up <= missing + (missing > 0 ? block : 0));
      if (missing == 0 && i > 0) CHECK(moved.loaded == 0);
      CHECK(world.device.carried() <= GiB);  // once, to put scattered free bytes together
    }
    CHECK(world.device.high_water() <= world.budget);
    CHECK(after_unload(world) == 0);
  }
}
