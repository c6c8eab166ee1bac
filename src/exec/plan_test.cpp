#include "exec/plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "exec/pack.h"
#include "exec/test_scale.h"
#include "exec/timeline.h"

using namespace sluice;
using test::kSlow;

namespace {

/// Uneven blocks, state over one to eight blocks, copy ÷ compute 0.25 to 8, one or two lanes.
StageCost random_stage(unsigned seed, int least, int most) {
  std::mt19937 rng(seed);
  const auto unit = [&] { return static_cast<double>(rng() % 1000) / 1000; };
  StageCost stage;
  stage.alignment = Bytes{32} << (rng() % 4);
  stage.lanes = 1 + static_cast<int>(rng() % 2);
  stage.link_bytes_per_s = 1e6;
  const double ratio = 0.25 * (1 << (rng() % 6));
  const int n = least + static_cast<int>(rng() % (most - least + 1));
  const bool even = rng() % 4 == 0;
  for (int i = 0; i < n; ++i) {
    BlockCost block;
    block.compute_s = even ? 1 : 0.2 + 1.6 * unit();
    block.weights = static_cast<Bytes>(ratio * 1e6 * (even ? 1 : 0.2 + 1.6 * unit()));
    block.workspace = static_cast<Bytes>(ratio * 3e5 * unit());
    if (rng() % 8 == 0) block.weights = 0;
    stage.blocks.push_back(block);
  }
  const int period = n * stage.lanes;
  for (int i = 0; i < period; ++i)
    stage.state.push_back(
        {static_cast<Bytes>(ratio * 1e5 * unit()), i, (i + static_cast<int>(rng() % std::min(8, period))) % period});
  stage.chunk = rng() % 3 ? GiB : align_up(static_cast<Bytes>(ratio * 3e6), stage.alignment);
  return stage;
}

Bytes weights_of(const StageCost& stage) {
  Bytes sum = 0;
  for (const auto& block : stage.blocks) sum += align_up(block.weights, stage.alignment);
  return sum;
}

/// max over ticks of weights + workspace + live state, from the declarations.
Bytes declared_load(const StageCost& stage) {
  Bytes most = 0;
  for (int tick = 0; tick < static_cast<int>(stage.blocks.size()) * stage.lanes; ++tick) {
    const auto& block = stage.blocks[static_cast<std::size_t>(tick / stage.lanes)];
    Bytes now = align_up(block.workspace, stage.alignment) + align_up(block.weights, stage.alignment);
    for (const auto& s : stage.state)
      if (s.from <= s.to ? s.from <= tick && tick <= s.to : tick >= s.from || tick <= s.to)
        now += align_up(s.size, stage.alignment);
    most = std::max(most, now);
  }
  return most;
}

/// Tick by tick: everything alive lies inside the transient zone, shares no byte, keeps off chunk ends; sums are what they say.
void check_plan(const StageCost& stage, const StagePlan& plan, Bytes budget) {
  const int n = static_cast<int>(stage.blocks.size()), lanes = stage.lanes;
  CHECK(plan.transient + plan.resident_bytes <= budget);
  REQUIRE(plan.resident.size() == stage.blocks.size());
  REQUIRE(plan.workspace.size() == stage.blocks.size());
  REQUIRE(plan.state.size() == stage.state.size());
  Bytes resident = 0, copied = 0;
  std::vector<std::uint32_t> streamed, kept;
  for (int b = 0; b < n; ++b) {
    const auto& block = stage.blocks[static_cast<std::size_t>(b)];
    if (!plan.resident[static_cast<std::size_t>(b)]) {
      CHECK(block.weights > 0);
      streamed.push_back(static_cast<std::uint32_t>(b));
      copied += block.weights;
    } else if (block.weights > 0) {
      kept.push_back(static_cast<std::uint32_t>(b));
      resident += align_up(block.weights, stage.alignment);
    }
  }
  CHECK(plan.resident_bytes == resident);
  CHECK(plan.bytes_per_sweep == copied);
  auto give_up = plan.give_up;
  std::sort(give_up.begin(), give_up.end());
  CHECK(give_up == kept);
  REQUIRE(plan.copies.size() == streamed.size());

  struct Object {
    Bytes begin, size;
    int from, length;
  };
  std::vector<Object> objects;
  for (std::size_t i = 0; i < plan.copies.size(); ++i) {
    const auto& copy = plan.copies[i];
    CHECK(copy.block == streamed[i]);
    // The place is the copy's own from the end of `after_block` on: at most once round.
    REQUIRE(copy.after_block >= 0);
    REQUIRE(copy.after_block < n);
    const int block = static_cast<int>(copy.block), after = copy.after_block - (copy.after_previous_sweep ? n : 0);
    REQUIRE(after < block);
    REQUIRE(block - after <= n);
    objects.push_back({copy.address, align_up(stage.blocks[copy.block].weights, stage.alignment), ((after + 1 + n) % n) * lanes,
                       (block - after) * lanes});
  }
  for (int b = 0; b < n; ++b)
    objects.push_back({plan.workspace[static_cast<std::size_t>(b)],
                       align_up(stage.blocks[static_cast<std::size_t>(b)].workspace, stage.alignment), b * lanes, lanes});
  for (std::size_t i = 0; i < stage.state.size(); ++i) {
    const auto& s = stage.state[i];
    objects.push_back(
        {plan.state[i], align_up(s.size, stage.alignment), s.from, (s.to - s.from + n * lanes) % (n * lanes) + 1});
  }
  bool disjoint = true, inside = true, whole = true;
  int most = 1;
  for (const auto& o : objects) {
    inside = inside && o.begin + o.size <= plan.transient && o.begin % stage.alignment == 0;
    if (stage.chunk && o.size && o.size <= stage.chunk)
      whole = whole && o.begin / stage.chunk == (o.begin + o.size - 1) / stage.chunk;
  }
  for (int tick = 0; tick < n * lanes; ++tick) {
    std::vector<std::pair<Bytes, Bytes>> now;
    int slots = 0;
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const auto& o = objects[i];
      if ((tick - o.from + n * lanes) % (n * lanes) >= o.length) continue;
      if (o.size) now.push_back({o.begin, o.begin + o.size});
      slots += i < plan.copies.size();
    }
    most = std::max(most, slots);
    std::sort(now.begin(), now.end());
    for (std::size_t i = 1; i < now.size(); ++i) disjoint = disjoint && now[i - 1].second <= now[i].first;
  }
  CHECK(disjoint);
  CHECK(inside);
  CHECK(whole);
  CHECK(plan.in_flight == most);
}

Bytes smallest_streamed(const StageCost& stage, const StagePlan& plan) {
  Bytes smallest = UINT64_MAX;
  for (const auto& copy : plan.copies)
    smallest = std::min(smallest, align_up(stage.blocks[copy.block].weights, stage.alignment));
  return smallest;
}

/// The best step over every subset of residents and every uniform look-ahead, packed for real. Written from the rules, not from
/// the planner: only the packer and the timeline are shared.
double exhaustive(const StageCost& stage, Bytes budget, int max_in_flight) {
  const int n = static_cast<int>(stage.blocks.size()), lanes = stage.lanes;
  std::vector<int> with_bytes;
  for (int b = 0; b < n; ++b)
    if (const auto& block = stage.blocks[static_cast<std::size_t>(b)]; block.weights > 0) with_bytes.push_back(b);
  double best = 1e300, compute = 0;
  for (const auto& block : stage.blocks) compute += block.compute_s;
  for (std::size_t mask = 0; mask < std::size_t{1} << with_bytes.size(); ++mask) {
    std::vector<int> streamed;
    Bytes kept = 0;
    double copies = 0;
    for (std::size_t i = 0; i < with_bytes.size(); ++i) {
      const Bytes size = stage.blocks[static_cast<std::size_t>(with_bytes[i])].weights;
      if (mask >> i & 1) {
        kept += align_up(size, stage.alignment);
      } else {
        streamed.push_back(with_bytes[i]);
        copies += static_cast<double>(size) / stage.link_bytes_per_s;
      }
    }
    if (kept > budget || std::max(copies, compute) >= best) continue;
    const int m = static_cast<int>(streamed.size());
    for (int f = 0; f <= max_in_flight && (f < m || f == 0); ++f) {
      StagePlan plan;
      std::vector<Extent> extents;
      for (int k = 0; k < m; ++k) {
        const int b = streamed[static_cast<std::size_t>(k)];
        int after = b - 1;  // f = 0: held only while it computes
        if (f > 0)
          after = k >= f ? streamed[static_cast<std::size_t>(k - f)] : streamed[static_cast<std::size_t>(k - f + m)] - n;
        extents.push_back(
            {stage.blocks[static_cast<std::size_t>(b)].weights, (after + 1 + n) % n * lanes, b * lanes + lanes - 1});
        plan.copies.push_back({static_cast<std::uint32_t>(b), 0, (after + n) % n, after < 0});
      }
      for (int b = 0; b < n; ++b)
        extents.push_back({stage.blocks[static_cast<std::size_t>(b)].workspace, b * lanes, b * lanes + lanes - 1});
      for (const auto& s : stage.state) extents.push_back({s.size, s.from, s.to});
      if (packing_load(extents, n * lanes, stage.alignment) + kept > budget) continue;
      const double step = simulate(stage, plan, 0).steady_step_s;
      if (step >= best) continue;
      if (pack_extents(extents, n * lanes, stage.alignment, stage.chunk).size + kept <= budget) best = step;
    }
  }
  return best;
}

}  // namespace

TEST_CASE("plan_stage: every budget from the smallest up works, below it is refused with that number") {
  for (unsigned seed = 0; seed < 150 / kSlow; ++seed) {
    CAPTURE(seed);
    const auto stage = random_stage(seed, 1, 60);
    const Bytes smallest = smallest_transient(stage), all = weights_of(stage);
    std::mt19937 rng(seed);
    for (const auto policy : {Policy::interleaved, Policy::first_k, Policy::all_streamed}) {
      CAPTURE(policy_name(policy));
      const auto refused = plan_stage(stage, smallest - std::min<Bytes>(smallest, 1), {policy});
      if (smallest > 0 && !refused) {
        CHECK(refused.error().code == Code::over_budget);
        CHECK(refused.error().needed == smallest);
      } else if (smallest > 0) {
        CHECK(refused->copies.empty());  // nothing to stream at all
      }
      for (const Bytes budget :
           {smallest, smallest + 1, smallest + rng() % (all + 1), smallest + rng() % (all + 1), smallest + all}) {
        const auto plan = plan_stage(stage, budget, {policy, 1 + static_cast<int>(rng() % 3)});
        REQUIRE(plan.has_value());
        check_plan(stage, *plan, budget);
      }
    }
  }
}

TEST_CASE("smallest_transient: at most 1.1 times the busiest block's declared bytes, mostly exactly those") {
  double sum = 0, worst = 0;
  for (unsigned seed = 0; seed < 500 / kSlow; ++seed) {
    CAPTURE(seed);
    auto stage = random_stage(seed, 1, 60);
    stage.chunk = 0;
    const double ratio =
        static_cast<double>(smallest_transient(stage)) / static_cast<double>(std::max<Bytes>(1, declared_load(stage)));
    CHECK(ratio >= (declared_load(stage) ? 1 : 0));
    CHECK(ratio <= 1.1);
    sum += ratio;
    worst = std::max(worst, ratio);
  }
  MESSAGE("S / load: mean " << sum / (500 / kSlow) << ", worst " << worst);
}

TEST_CASE("plan_stage: within 1 % of trying every subset") {
  double worst = 0, sum = 0;
  int cases = 0;
  for (unsigned seed = 0; seed < 300 / kSlow; ++seed) {
    CAPTURE(seed);
    const auto stage = random_stage(seed, 2, seed % 20 == 0 ? 12 : 9);
    std::mt19937 rng(seed);
    const Bytes budget = smallest_transient(stage) + rng() % (weights_of(stage) + 1);
    const auto plan = plan_stage(stage, budget);
    REQUIRE(plan.has_value());
    const double best = exhaustive(stage, budget, 3);
    CHECK(plan->step_s <= 1.01 * best);
    worst = std::max(worst, plan->step_s / best);
    sum += plan->step_s / best;
    ++cases;
  }
  MESSAGE("step / best subset: mean " << sum / cases << ", worst " << worst);
}

TEST_CASE("plan_stage: 13 to 16 blocks, too many for all subsets, come within 2 % of them") {
  double worst = 0;
  for (unsigned seed = 0; seed < 100; seed += kSlow) {
    CAPTURE(seed);
    const auto stage = random_stage(seed, 13, 16);
    std::mt19937 rng(seed);
    const Bytes budget = smallest_transient(stage) + rng() % (weights_of(stage) + 1);
    const auto plan = plan_stage(stage, budget);
    REQUIRE(plan.has_value());
    const double ratio = plan->step_s / exhaustive(stage, budget, 3);
    CHECK(ratio <= 1.02);
    worst = std::max(worst, ratio);
  }
  MESSAGE("step / best subset, 13 to 16 blocks: worst " << worst);
}

TEST_CASE("plan_stage: never worse than first-K, 1000 stages") {
  int better = 0;
  for (unsigned seed = 0; seed < 1000 / kSlow; ++seed) {
    CAPTURE(seed);
    const auto stage = random_stage(seed, 1, 60);
    std::mt19937 rng(seed);
    const Bytes budget = smallest_transient(stage) + rng() % (weights_of(stage) + 1);
    const auto ours = plan_stage(stage, budget), first = plan_stage(stage, budget, {Policy::first_k});
    REQUIRE(ours.has_value());
    REQUIRE(first.has_value());
    CHECK(ours->step_s <= first->step_s);
    better += ours->step_s < 0.99 * first->step_s;
  }
  CHECK(better > static_cast<int>(300 / kSlow));
}

TEST_CASE("plan_stage: a larger budget or a faster link is never slower") {
  for (unsigned seed = 0; seed < 60 / kSlow; ++seed) {
    CAPTURE(seed);
    auto stage = random_stage(seed, 1, 40);
    const Bytes smallest = smallest_transient(stage), all = weights_of(stage);
    double before = 1e300;
    for (int i = 0; i <= 40; ++i) {
      CAPTURE(i);
      const auto plan = plan_stage(stage, smallest + all * static_cast<Bytes>(i) / 40);
      REQUIRE(plan.has_value());
      CHECK(plan->step_s <= before * (1 + 1e-9));
      before = plan->step_s;
    }
    before = 1e300;
    for (double rate = 1e5; rate < 1e8; rate *= 1.5) {
      CAPTURE(rate);
      stage.link_bytes_per_s = rate;
      const auto plan = plan_stage(stage, smallest + all / 3);
      REQUIRE(plan.has_value());
      CHECK(plan->step_s <= before * (1 + 1e-9));
      before = plan->step_s;
    }
  }
}

TEST_CASE("plan_stage: the budget is in use") {
  for (unsigned seed = 0; seed < 300 / kSlow; ++seed) {
    CAPTURE(seed);
    const auto stage = random_stage(seed, 1, 60);
    std::mt19937 rng(seed);
    const Bytes budget = smallest_transient(stage) + rng() % (weights_of(stage) + 1);
    const auto plan = plan_stage(stage, budget);
    REQUIRE(plan.has_value());
    const Bytes unused = budget - plan->transient - plan->resident_bytes;
    CHECK((plan->copies.empty() || unused < smallest_streamed(stage, *plan)));
  }
}

TEST_CASE("plan_stage: give-up order is one priority, so residents that stay keep their order") {
  const auto stage = random_stage(4, 60, 60);
  const Bytes smallest = smallest_transient(stage);
  std::vector<std::uint32_t> longest;
  for (int i = 40; i >= 1; --i) {
    const auto plan = plan_stage(stage, smallest + weights_of(stage) * static_cast<Bytes>(i) / 40);
    REQUIRE(plan.has_value());
    if (longest.empty()) longest = plan->give_up;
    auto at = longest.begin();
    for (const auto block : plan->give_up) {
      at = std::find(at, longest.end(), block);
      REQUIRE(at != longest.end());
    }
  }
}

TEST_CASE("plan_stage: all_resident refuses with the number that works") {
  const auto stage = random_stage(11, 20, 20);
  const auto refused = plan_stage(stage, 1, {Policy::all_resident});
  REQUIRE(!refused.has_value());
  CHECK(refused.error().code == Code::over_budget);
  const Bytes full = refused.error().needed;
  CHECK(!plan_stage(stage, full - 1, {Policy::all_resident}).has_value());
  const auto plan = plan_stage(stage, full, {Policy::all_resident});
  REQUIRE(plan.has_value());
  CHECK(plan->copies.empty());
  check_plan(stage, *plan, full);
  CHECK(plan_stage(stage, full)->copies.empty());
}

TEST_CASE("plan_stage: the same input gives the same plan") {
  const auto stage = random_stage(5, 40, 40);
  const Bytes budget = smallest_transient(stage) + weights_of(stage) / 2;
  const auto a = plan_stage(stage, budget), b = plan_stage(stage, budget);
  REQUIRE(a.has_value());
  CHECK(a->resident == b->resident);
  CHECK(a->workspace == b->workspace);
  CHECK(a->state == b->state);
  REQUIRE(a->copies.size() == b->copies.size());
  for (std::size_t i = 0; i < a->copies.size(); ++i) CHECK(a->copies[i].address == b->copies[i].address);
}

TEST_CASE("plan_stage: objects larger than a chunk, and input that means nothing, are refused by name") {
  auto stage = random_stage(5, 10, 10);
  stage.chunk = 64 * MiB;
  stage.blocks[3] = {.weights = 65 * MiB, .compute_s = 1};
  const auto refused = plan_stage(stage, GiB);
  REQUIRE(!refused.has_value());
  CHECK(refused.error().code == Code::over_budget);
  CHECK(refused.error().needed == 0);
  CHECK(refused.error().message.find("block 3") != std::string::npos);
  // A workspace of many smaller nodes may span chunks; it then starts at one.
  stage.blocks[3] = {.weights = 5 * MiB, .workspace = 100 * MiB, .contiguous = 60 * MiB, .compute_s = 1};
  const auto spanning = plan_stage(stage, GiB);
  REQUIRE(spanning.has_value());
  CHECK(spanning->workspace[3] % stage.chunk == 0);
  check_plan(stage, *spanning, GiB);
  stage.blocks[3].contiguous = 0;
  CHECK(!plan_stage(stage, GiB).has_value());

  const auto good = random_stage(5, 10, 10);
  const auto invalid = [&](auto change) {
    auto bad = good;
    change(bad);
    const auto plan = plan_stage(bad, GiB);
    return !plan && plan.error().code == Code::invalid_argument;
  };
  CHECK(invalid([](auto& s) { s.blocks.clear(); }));
  CHECK(invalid([](auto& s) { s.lanes = 0; }));
  CHECK(invalid([](auto& s) { s.alignment = 3; }));
  CHECK(invalid([](auto& s) { s.link_bytes_per_s = 0; }));
  CHECK(invalid([](auto& s) { s.link_bytes_per_s = std::numeric_limits<double>::quiet_NaN(); }));
  CHECK(invalid([](auto& s) { s.blocks[2].compute_s = -1; }));
  CHECK(invalid([](auto& s) { s.blocks[2].weights = UINT64_MAX; }));
  CHECK(invalid([](auto& s) { s.state[0].to = 1000; }));
}
