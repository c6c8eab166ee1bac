// A budget, an outside world and a device's limits, within one request: what is planned, taken and kept.
#include <doctest/doctest.h>

#include <algorithm>

#include "pipeline/budget.h"
#include "pipeline/run_stage.h"
#include "support/rig.h"
#include "support/two_block_model.h"

using namespace sluice;
using namespace sluice::test;

namespace {

constexpr Bytes kReserve = 256 * MiB;

Request six_steps() {
  Request r = one_step();
  r.steps = 6;
  return r;
}

bool refused_an_allocation(const SimDevice& device) {
  return std::ranges::any_of(device.log(),
                             [](const SimEvent& event) { return event.kind == SimEvent::Kind::alloc && !event.ok; });
}

/// Blocks of one size on a device of its own.
struct Blocks {
  struct Run {
    StagePlan plan;
    Bytes smallest = 0, full = 0, backend = 0, taken = 0;
    std::vector<Bytes> copied;  ///< by each sweep
    std::vector<float> output;
    int most_buffers = 0;
    double last_sweep_s = 0;
  };
  const TwoBlockModel& model;

  Run run(SimOptions sim, std::optional<Bytes> budget, int sweeps) const {
    auto device = SimDevice::open(sim);
    REQUIRE(device);
    WeightStore store(**device, {HostTier::disk, std::nullopt, {}});
    auto spec = model.spec(std::make_shared<Countdown>());
    REQUIRE(spec);
    const auto id = store.add(std::move(*spec));
    REQUIRE_MESSAGE(id, id.error().message);
    DeviceMemory memory(**device, store, {budget, {}, {}});
    Session session({&memory}, store, {});
    const auto shape = model.input_shape();
    const auto prepared = session.prepare({{"blocks", *id, {lane_shape({{shape[0], shape[1], 1, 1}})}, sweeps}});
    REQUIRE_MESSAGE(prepared, prepared.error().message);
    Run run{.plan = (*prepared)->plan().stages[0].plan,
            .smallest = (*prepared)->plan().smallest + (*prepared)->backend(),
            .full = (*prepared)->plan().full + (*prepared)->backend(),
            .backend = (*prepared)->backend()};
    const auto bound = session.bind(**prepared, CancelToken{});
    REQUIRE_MESSAGE(bound, bound.error().message);
    run.taken = (*device)->ledger().report().total + run.backend;
    {
      auto runner = session.begin(**prepared, 0, {});
      REQUIRE(runner);
      for (int s = 0; s < sweeps; ++s) {
        auto outputs = sweep_once(**runner, (*prepared)->stages[0], {{model.input(0)}}, s == 0, [](int) {});
        REQUIRE_MESSAGE(outputs, outputs.error().message);
        run.output = (*outputs)[0][0];
        run.most_buffers = std::max(run.most_buffers, (*device)->live_buffers());
      }
      run.copied = (*runner)->stats().copied;
      run.last_sweep_s = (*runner)->stats().sweep_s.back();
    }
    session.end();
    session.finish(true);
    CHECK_FALSE(refused_an_allocation(**device));
    if (budget) CHECK((*device)->high_water() <= *budget);
    return run;
  }
};

SimOptions virtual_time(double link = 1e9, double flops = 1e9) {
  SimOptions sim;
  sim.threads = 1;
  sim.link_bytes_per_s = link;
  sim.flops_per_s = flops;
  return sim;
}

}  // namespace

// Another program takes half of the device between two steps, and gives it back later: the plan rests on the first measurement.
TEST_CASE("the device shrinks by half after step 2 and recovers after step 4: three plans, nothing refused, the same picture") {
  Drawn want;
  Bytes full = 0, smallest = 0;
  {
    auto rig = Rig::open({});
    REQUIRE(rig);
    auto drawn = (*rig)->draw(six_steps());
    REQUIRE(drawn);
    want = std::move(*drawn);
    const auto prepared = (*rig)->prepare(six_steps());
    REQUIRE(prepared);
    full = (*prepared)->plan().full + (*prepared)->backend();
    smallest = (*prepared)->plan().smallest + (*prepared)->backend();
  }
  SimOptions sim;
  sim.threads = 1;
  sim.memory = full + full / 3;
  // An eighth stays free.
  const Bytes half = sim.memory / 2, most = sim.memory - sim.memory / 8, most_of_half = half - half / 8;
  REQUIRE(most >= full);
  REQUIRE(most_of_half >= smallest);
  REQUIRE(most_of_half < full);

  auto device = SimDevice::open(sim);
  REQUIRE(device);
  std::unique_ptr<LoadedModel> model;  // before the store, which refers to its models
  WeightStore store(**device, {HostTier::mapped, std::nullopt, {}});
  const Budget automatic;
  const auto first = resolve_budget(automatic, **device, 0, kReserve);
  REQUIRE(first);
  DeviceMemory memory(**device, store, {*first, {}, {}});
  SessionOptions options;
  options.follow = [&] { return follow_one(automatic, kReserve, memory); };
  Session session({&memory}, store, options);
  auto loaded = load_model(kDemoModel, *system_files(), store, {});
  REQUIRE(loaded);
  model = std::move(*loaded);

  // A device of this size of which nobody else takes anything.
  const auto report = [&](Bytes total) {
    const auto books = (*device)->ledger().report();
    const Bytes held = books.total + books.backend;
    (*device)->set_report(total - std::min(total, held), total);
  };
  const auto ours = [&] {
    const auto books = (*device)->ledger().report();
    return books.total + books.backend;
  };
  Watch watch;
  std::vector<Bytes> taken;
  watch.step = [&](int, int step, std::span<const float>) {
    taken.push_back(ours());
    const int done = step + 1;
    report(done >= 2 && done < 4 ? half : sim.memory);
  };
  const auto settings = check_request(six_steps(), model->rule);
  REQUIRE(settings);
  const auto drawn = TextToImage(*model, store, session).draw(*settings, {}, {}, watch);
  REQUIRE_MESSAGE(drawn, drawn.error().message);
  CHECK(drawn->latents == want.latents);
  CHECK(drawn->pixels == want.pixels);
  CHECK(session.counters().plans_built <= 3);
  CHECK(session.counters().plans_built >= 2);
  CHECK_FALSE(refused_an_allocation(**device));
  REQUIRE(taken.size() == 6);
  CHECK(taken[1] > half);           // step 2: everything stays
  CHECK(taken[2] <= most_of_half);  // steps 3 and 4: in what is left
  CHECK(taken[3] <= most_of_half);
  CHECK(taken[4] > taken[3]);  // step 5: back again
}

// Pieces so large that nothing can stay.
TEST_CASE("a model of 1.2 times the budget: at least 60 % stay, and a step sends no more than the rest and a block") {
  const TwoBlockModel model("blocks", 40, 64, 5);
  const Blocks blocks{model};
  const Bytes weights = model.blocks() * model.block_bytes();
  const auto want = blocks.run(virtual_time(), std::nullopt, 1);
  const Bytes budget = weights * 10 / 12;
  const auto run = blocks.run(virtual_time(), budget, 3);
  CHECK(run.output == want.output);
  CHECK(run.plan.resident_bytes * 10 >= weights * 6);
  CHECK(run.copied.back() <= weights - run.plan.resident_bytes + model.block_bytes());
  CHECK(run.copied.back() == run.plan.bytes_per_sweep);
}

// The reserve for what is in flight is the largest piece times the number of streams.
TEST_CASE("one block a hundred times the others: room for it once, and the rest stays beside it") {
  StageCost cost;
  cost.sweeps = 20;
  cost.chunk = 4 * GiB;
  cost.blocks.push_back({.weights = 2 * GiB, .workspace = MiB, .compute_s = 1e-3});
  for (int b = 0; b < 60; ++b) cost.blocks.push_back({.weights = 16 * MiB, .workspace = MiB, .compute_s = 1e-3});
  const Bytes smallest = smallest_transient(cost);
  CHECK(smallest <= 2 * GiB + MiB);
  const Bytes all = 2 * GiB + 60 * 16 * MiB + MiB;
  for (const Bytes spare : {64 * MiB, 256 * MiB, 512 * MiB}) {
    const auto plan = plan_stage(cost, smallest + spare);
    REQUIRE(plan);
    CAPTURE(spare);
    CAPTURE(plan->resident_bytes);
    CHECK(plan->slot_bytes <= 2 * GiB + 2 * 16 * MiB);
    CHECK(smallest + spare - plan->transient - plan->resident_bytes < 16 * MiB);
    CHECK(plan->bytes_per_sweep <= all - spare);
  }
}

// A budget of ten, of which four are used.
TEST_CASE("what fits whole is loaded whole; else nine tenths of the budget are in use and a step is as long as it must be") {
  const TwoBlockModel model("blocks", 40, 64, 6);
  const Blocks blocks{model};
  const auto whole = blocks.run(virtual_time(), std::nullopt, 1);
  // 77 % of the budget: nothing moves after the first sweep.
  const auto roomy = blocks.run(virtual_time(), whole.full * 100 / 77, 3);
  CHECK(roomy.plan.copies.empty());
  CHECK(roomy.copied == std::vector<Bytes>{model.blocks() * model.block_bytes(), 0, 0});
  for (const double link : {2e8, 1e9, 5e9}) {
    for (const Bytes percent : {30, 50, 70, 90, 99}) {
      CAPTURE(link);
      CAPTURE(percent);
      const Bytes budget = whole.full * percent / 100;
      const auto run = blocks.run(virtual_time(link), budget, 4);
      CHECK(run.output == whole.output);
      CHECK(run.taken * 10 >= budget * 9);
      CHECK(run.last_sweep_s <= 1.15 * std::max(run.plan.roofline_s, static_cast<double>(run.copied.back()) / link));
    }
  }
}

// The driver refuses though memory is free, because there are too many buffers.
TEST_CASE("two hundred blocks on a device with at most 32 live buffers: as many as before, whatever the budget") {
  const TwoBlockModel model("blocks", 200, 32, 7);
  const Blocks blocks{model};
  const auto want = blocks.run(virtual_time(), std::nullopt, 1);
  SimOptions capped = virtual_time();
  capped.max_buffers = 32;
  capped.max_buffer = 64 * KiB;
  const Bytes step = (want.full - want.smallest) / 6;
  for (int i = 0; i <= 6; ++i) {
    CAPTURE(i);
    const auto run = blocks.run(capped, i == 6 ? want.full + step : want.smallest + static_cast<Bytes>(i) * step, 2);
    CHECK(run.output == want.output);
    CHECK(run.most_buffers <= 32);
  }
}
