#include "exec/timeline.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "exec/test_scale.h"

using namespace sluice;
using test::kSlow;

namespace {

/// 60 equal blocks of one second of compute each; copies take `ratio` seconds.
StageCost sixty(double ratio) {
  StageCost stage;
  stage.alignment = 1;
  stage.chunk = 0;
  stage.link_bytes_per_s = 1e6;
  for (int i = 0; i < 60; ++i) stage.blocks.push_back({.weights = static_cast<Bytes>(ratio * 1e6), .compute_s = 1});
  return stage;
}

StageCost random_stage(std::mt19937& rng, int most) {
  StageCost stage;
  stage.link_bytes_per_s = 1e6 * static_cast<double>(1 + rng() % 8);
  stage.link_latency_s = rng() % 2 ? 0 : 1e-3;
  const int n = 1 + static_cast<int>(rng() % most);
  for (int i = 0; i < n; ++i)
    stage.blocks.push_back(
        {.weights = rng() % 3000000, .workspace = rng() % 300000, .compute_s = static_cast<double>(rng() % 1000) / 1000});
  return stage;
}

/// A second look at the same rules, sweep after sweep as plain recursion over events.
double replay(const StageCost& stage, const StagePlan& plan, int sweeps, int window) {
  const auto n = stage.blocks.size();
  std::vector<std::vector<double>> end(static_cast<std::size_t>(sweeps), std::vector<double>(n, 0));
  double link = 0, last = 0;
  for (std::size_t s = 0; s < end.size(); ++s) {
    for (std::size_t b = 0; b < n; ++b) {
      double start = last;
      for (const auto& copy : plan.copies) {
        if (copy.block != b) continue;
        double ready = 0;
        if (!copy.after_previous_sweep) ready = end[s][static_cast<std::size_t>(copy.after_block)];
        if (copy.after_previous_sweep && s > 0) ready = end[s - 1][static_cast<std::size_t>(copy.after_block)];
        link = std::max(link, ready) + static_cast<double>(stage.blocks[b].weights) / stage.link_bytes_per_s +
               stage.link_latency_s;
        start = std::max(start, link);
      }
      last = end[s][b] = start + stage.blocks[b].compute_s;
    }
  }
  return (end.back().back() - end[end.size() - 1 - static_cast<std::size_t>(window)].back()) / window;
}

}  // namespace

TEST_CASE("timeline: the design's table, 60 equal blocks and two slots") {
  struct Row {
    double ratio, share, first_k, interleaved, limit;
  };
  for (const Row& row :
       {Row{2, 0.25, 103, 90, 90}, Row{2, 0.5, 88, 60, 60}, Row{4, 0.5, 144, 120, 120}, Row{4, 0.75, 99, 60, 60}}) {
    CAPTURE(row.ratio);
    CAPTURE(row.share);
    const auto stage = sixty(row.ratio);
    const auto budget = static_cast<Bytes>((60 * row.share + 2) * row.ratio * 1e6);
    const auto first = plan_stage(stage, budget, {Policy::first_k, 2}),
               ours = plan_stage(stage, budget, {Policy::interleaved, 2});
    REQUIRE(first.has_value());
    REQUIRE(ours.has_value());
    // An odd number of equal slots, two at a time around a circle, needs a cut somewhere: up to one block's compute longer.
    CHECK(std::abs(first->step_s - row.first_k) <= 1 + 1e-6);
    CHECK(std::abs(ours->step_s - row.interleaved) <= 1 + 1e-6);
    CHECK(ours->step_s >= row.limit - 1e-6);
  }
}

TEST_CASE("timeline: by hand") {
  StageCost stage = sixty(2);
  stage.blocks.resize(3);
  StagePlan plan;
  plan.resident = {true, false, false};
  // Both wait for the block before: copies 2, compute 1 each.
  plan.copies = {{1, 0, 0, false}, {2, 0, 1, false}};
  const auto timeline = simulate(stage, plan, 3);
  CHECK(timeline.steady_step_s == doctest::Approx(7).epsilon(1e-9));  // 1, 2 + 1, 2 + 1
  CHECK(timeline.first_step_s == doctest::Approx(7).epsilon(1e-9));
  REQUIRE(timeline.events.size() == 9);
  CHECK(timeline.events[4].copy_start == doctest::Approx(8).epsilon(1e-9));
  CHECK(timeline.events[4].compute_start == doctest::Approx(10).epsilon(1e-9));
  // Fetched across the sweep's end: the first sweep starts with a free slot and waits for its copy all the same.
  plan.copies = {{1, 0, 2, true}, {2, 0, 1, false}};
  const auto across = simulate(stage, plan, 3);
  CHECK(across.first_step_s == doctest::Approx(6).epsilon(1e-9));
  CHECK(across.steady_step_s == doctest::Approx(6).epsilon(1e-9));
}

TEST_CASE("timeline: nothing copied takes the compute time; nothing computed the copy time") {
  auto stage = sixty(2);
  StagePlan plan;
  plan.resident.assign(60, true);
  CHECK(simulate(stage, plan, 1).steady_step_s == doctest::Approx(60).epsilon(1e-9));
  for (auto& block : stage.blocks) block.compute_s = 0;
  const auto streamed = plan_stage(stage, 4'000'000, {Policy::all_streamed});
  REQUIRE(streamed.has_value());
  CHECK(streamed->step_s == doctest::Approx(120).epsilon(1e-9));
}

TEST_CASE("timeline: never below the roofline, and the same as a second simulation") {
  for (unsigned seed = 0; seed < 400 / kSlow; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    const auto stage = random_stage(rng, 40);
    const Bytes smallest = smallest_transient(stage);
    const auto plan =
        plan_stage(stage, smallest + rng() % 20000000, {static_cast<Policy>(rng() % 3), 1 + static_cast<int>(rng() % 4)});
    REQUIRE(plan.has_value());
    const auto timeline = simulate(stage, *plan, 5);
    double compute = 0, copies = 0;
    for (const auto& block : stage.blocks) compute += block.compute_s;
    for (const auto& copy : plan->copies)
      copies += static_cast<double>(stage.blocks[copy.block].weights) / stage.link_bytes_per_s + stage.link_latency_s;
    const double limit = std::max(compute, copies);
    CHECK(timeline.steady_step_s >= limit * (1 - 1e-9));
    CHECK(plan->roofline_s == doctest::Approx(limit).epsilon(1e-9));
    CHECK(plan->step_s == doctest::Approx(timeline.steady_step_s).epsilon(1e-9));
    // 840 sweeps: a multiple of every pattern length up to 8, long after any start.
    CHECK(replay(stage, *plan, 1700, 840) == doctest::Approx(timeline.steady_step_s).epsilon(2e-3));
    // One queue, one link, nothing before its time.
    double link = 0, queue = 0;
    for (const auto& e : timeline.events) {
      CHECK(e.compute_start >= queue * (1 - 1e-12));
      CHECK(e.compute_start >= e.copy_end * (1 - 1e-12));
      queue = e.compute_end;
      if (e.copy_end == e.copy_start) continue;
      CHECK(e.copy_start >= link * (1 - 1e-12));
      link = e.copy_end;
    }
  }
}
