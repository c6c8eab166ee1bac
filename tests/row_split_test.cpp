// Rows of large weights spread over several devices: the bits of one device, each share on its own device's accounts, and
// nothing that ever takes them away.
#include <doctest/doctest.h>

#include "device/row_split.h"
#include "support/rig.h"

using namespace sluice;
using namespace sluice::test;

namespace {

// The demo model's matrices have up to 1024 rows and columns; few have 256 of both.
constexpr std::int64_t kFrom = 128;

SimOptions sim(const char* label) {
  SimOptions options;
  options.label = label;
  options.threads = 1;
  options.row_split = true;
  return options;
}

RigOptions rows(std::size_t devices, std::optional<Bytes> first = std::nullopt, std::optional<Bytes> others = std::nullopt) {
  static const char* const kLabels[] = {"a", "b", "c"};
  RigOptions options;
  options.sim = sim(kLabels[0]);
  options.budget = first;
  for (std::size_t d = 1; d < devices; ++d) options.more.emplace_back(sim(kLabels[d]), others);
  options.spread_from = kFrom;
  return options;
}

const Drawn& drawn_on_one() {
  static const Drawn drawn = Rig::open({}).value()->draw(small_request()).value();
  return drawn;
}

void check_same(const Drawn& got) {
  CHECK(got.latents == drawn_on_one().latents);
  CHECK(got.pixels == drawn_on_one().pixels);
}

std::unique_ptr<Rig> must_open(const RigOptions& options) {
  auto rig = Rig::open(options);
  REQUIRE_MESSAGE(rig, rig.error().message);
  return *std::move(rig);
}

void must_draw(Rig& rig) {
  auto drawn = rig.draw(small_request());
  REQUIRE_MESSAGE(drawn, drawn.error().message);
  check_same(*drawn);
}

std::size_t flagged(Rig& rig, ComponentId component) {
  std::size_t count = 0;
  for (std::uint32_t b = 0; b < rig.store().model(component).blocks.size(); ++b)
    count += rig.store().has_flag({component, b}, BlockFlag::row_split);
  return count;
}

}  // namespace

TEST_CASE("two and three devices: the bits of one, the first computes, shares by budget on each device's own accounts") {
  for (const std::size_t devices : {2U, 3U})
    for (const HostTier tier : {HostTier::mapped, HostTier::read, HostTier::disk}) {
      CAPTURE(devices);
      RigOptions options = rows(devices, 24 * MiB, 12 * MiB);
      options.tier = tier;
      auto rig = must_open(options);
      REQUIRE(rig->prepare(small_request()));
      const ComponentId denoiser = rig->model().denoiser;
      CHECK(rig->store().splits_rows(denoiser));
      CHECK_FALSE(rig->store().splits_rows(rig->model().decoder));
      CHECK(rig->device(0).counters().allocs + rig->device(1).counters().allocs == 0);
      const auto shares = rig->store().split_bytes(denoiser);
      // By budget, in whole tiles of 32 rows on the simulated device.
      std::vector<std::optional<Bytes>> budgets(devices, 12 * MiB);
      budgets[0] = 24 * MiB;
      std::vector<Bytes> parts(devices, 0);
      Bytes whole = 0;
      for (std::uint32_t b = 0; b < rig->store().model(denoiser).blocks.size(); ++b)
        for (const auto& tensor : rig->store().layout({denoiser, b}).tensors) {
          if (!tensor.apart) continue;
          const auto counts = split_rows(tensor.shape[1], shares_by_budget(budgets), 32);
          for (std::size_t d = 0; d < devices; ++d) parts[d] += split_size(tensor.type, tensor.shape[0], counts[d]);
          whole += tensor.size;
        }
      REQUIRE(whole > 4 * MiB);
      for (int i = 0; i < 2; ++i) must_draw(*rig);
      CHECK(flagged(*rig, denoiser) > 8);
      CHECK(flagged(*rig, rig->model().decoder) == 0);
      for (std::uint32_t b = 0; b < rig->store().model(denoiser).blocks.size(); ++b)
        CHECK(rig->store().device_of(BlockId{denoiser, b}) == 0);
      for (std::size_t d = 0; d < devices; ++d) {
        CAPTURE(d);
        if (d > 0) {
          // What the device itself counted for its part, once and for all requests.
          Bytes part = 0;
          for (const SimEvent& event : rig->device(d).log())
            part += event.kind == SimEvent::Kind::alloc && event.buffer == 0 ? event.bytes : 0;
          CHECK(part == parts[d]);
        }
        CHECK(parts[d] <= shares[d]);
        CHECK(rig->store().split_on(d) == shares[d]);
        CHECK(rig->memory(d).taken() >= shares[d]);
        CHECK(rig->device(d).high_water() > 0);
        CHECK(rig->device(d).high_water() <= (d == 0 ? 24 * MiB : 12 * MiB));
        CHECK(rig->device(d).ledger().report().peak <= (d == 0 ? 24 * MiB : 12 * MiB));
      }
    }
}

TEST_CASE("tight budgets: the rest streams, each device within its own budget, and the same bits") {
  const Bytes share = [] {
    auto rig = must_open(rows(2, 64 * MiB, 64 * MiB));
    REQUIRE(rig->prepare(small_request()));
    return rig->store().split_bytes(rig->model().denoiser)[1];
  }();
  int streamed = 0;
  for (const Bytes budget : {share + 3 * MiB, share + 5 * MiB, share + 8 * MiB, share + 20 * MiB}) {
    CAPTURE(budget);
    auto rig = must_open(rows(2, budget, budget));
    auto prepared = rig->prepare(small_request());
    REQUIRE_MESSAGE(prepared, prepared.error().message);
    streamed += !(*prepared)->plan().stages[1].plan.copies.empty();
    must_draw(*rig);
    must_draw(*rig);
    CHECK(rig->device(0).high_water() <= budget);
    CHECK(rig->device(1).high_water() <= budget);
  }
  CHECK(streamed > 0);
}

TEST_CASE("a refusal names a budget that works, and allocates nothing") {
  int refusals = 0;
  for (const auto& [first, other] :
       {std::pair<Bytes, Bytes>{2 * MiB, 2 * MiB}, {6 * MiB, 100 * KiB}, {KiB, 64 * MiB}, {3 * MiB, 1}}) {
    CAPTURE(first);
    auto rig = must_open(rows(2, first, other));
    const auto refused = rig->prepare(small_request());
    if (refused) {
      must_draw(*rig);
      continue;
    }
    ++refusals;
    REQUIRE(refused.error().code == Code::over_budget);
    CHECK(rig->device(0).counters().allocs + rig->device(1).counters().allocs == 0);
    REQUIRE(rig->session().refused_on() == 0);
    CHECK(refused.error().available == first);
    CHECK(refused.error().needed > first);
    // On this engine, and on one opened with that budget.
    rig->memory(0).set_budget(refused.error().needed);
    must_draw(*rig);
    auto opened = must_open(rows(2, refused.error().needed, other));
    must_draw(*opened);
    CHECK(opened->device(0).high_water() <= refused.error().needed);
    CHECK(opened->device(1).high_water() <= other);
  }
  CHECK(refusals >= 2);
}

TEST_CASE("never demoted: under a smaller budget, for another component, in an idle engine; placing is refused") {
  auto rig = must_open(rows(2, 40 * MiB, 40 * MiB));
  must_draw(*rig);
  const ComponentId denoiser = rig->model().denoiser;
  const Bytes on_first = rig->store().split_on(0), on_second = rig->store().split_on(1);
  REQUIRE(on_first > 0);
  const auto stays = [&] {
    CHECK(rig->store().split_loaded(denoiser));
    CHECK(rig->store().split_on(0) == on_first);
    CHECK(rig->store().split_on(1) == on_second);
    CHECK(rig->device(0).ledger().report().by_use[static_cast<std::size_t>(Use::weights)] >= on_first);
  };
  for (const std::size_t d : {0U, 1U}) {
    rig->memory(d).set_budget(1 * MiB);
    rig->memory(d).relieve();
    CHECK(rig->memory(d).taken() >= (d == 0 ? on_first : on_second));
  }
  stays();
  // Nothing can be run in less than what stays.
  const auto refused = rig->prepare(small_request());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::over_budget);
  rig->memory(0).unload(Leaving::idle);
  rig->memory(1).unload(Leaving::idle);
  stays();
  CHECK(rig->store().place(denoiser, 0).error().code == Code::invalid_argument);
  CHECK(rig->store().place(denoiser, 1).error().code == Code::invalid_argument);
  std::vector<std::size_t> other(rig->store().model(denoiser).blocks.size(), 1);
  CHECK(rig->store().assign(denoiser, other).error().code == Code::invalid_argument);
  CHECK(rig->session().place(denoiser, 1).error().code == Code::invalid_argument);
  for (std::uint32_t b = 0; b < other.size(); ++b)
    if (rig->store().has_flag({denoiser, b}, BlockFlag::row_split)) CHECK(rig->store().demote({denoiser, b}) == 0);
  stays();
  for (const std::size_t d : {0U, 1U}) rig->memory(d).set_budget(40 * MiB);
  must_draw(*rig);
  stays();
  // What the first budget needs once all is loaded is told right too.
  rig->memory(0).set_budget(on_first + 100 * KiB);
  const auto tight = rig->prepare(small_request());
  REQUIRE_FALSE(tight);
  rig->memory(0).set_budget(tight.error().needed);
  must_draw(*rig);
  CHECK(rig->memory(0).taken() <= tight.error().needed);
}

TEST_CASE("where a device refuses its part nothing stays of it, and the next request works") {
  for (const std::size_t device : {0U, 1U})
    for (const std::uint64_t nth : {1U, 3U, 9U}) {
      CAPTURE(device);
      CAPTURE(nth);
      RigOptions options = rows(2, 40 * MiB, 40 * MiB);
      SimOptions& faulty = device == 0 ? options.sim : options.more[0].first;
      faulty.fail_alloc = nth;
      faulty.fail_allocs = 10;  // as often as a refusal is outlasted
      auto rig = must_open(options);
      const auto refused = rig->draw(small_request());
      REQUIRE_FALSE(refused);
      CHECK(refused.error().code == Code::device_oom);
      for (const std::size_t d : {0U, 1U}) {
        CHECK(rig->store().split_on(d) == 0);
        CHECK(rig->device(d).ledger().report().total == rig->memory(d).arena().size());
      }
      CHECK(rig->device(1).live_buffers() == 0);
      CHECK(flagged(*rig, rig->model().denoiser) == 0);
      must_draw(*rig);
      must_draw(*rig);
    }
}

TEST_CASE("a failed or cancelled copy of a spread weight leaves nothing, and the next request works") {
  for (const std::uint64_t nth : {1U, 5U}) {
    RigOptions options = rows(2, 40 * MiB, 40 * MiB);
    options.sim.fail_copy = nth;
    auto rig = must_open(options);
    const auto failed = rig->draw(small_request());
    REQUIRE_FALSE(failed);
    CHECK(failed.error().code == Code::device_failed);
    CHECK(rig->store().split_on(0) + rig->store().split_on(1) == 0);
    must_draw(*rig);
  }
  auto rig = must_open(rows(2, 40 * MiB, 40 * MiB));
  CancelToken cancel;
  rig->device(0).on_event([&](const SimEvent& event) {
    if (event.kind == SimEvent::Kind::set && rig->store().split_on(0) == 0) cancel.cancel();
  });
  CHECK(rig->draw(small_request(), cancel).error().code == Code::cancelled);
  rig->device(0).on_event({});
  CHECK(rig->store().split_on(0) + rig->store().split_on(1) == 0);
  CHECK(rig->device(1).live_buffers() == 0);
  must_draw(*rig);
}

TEST_CASE("the engine: --split rows, what it refuses, and that a model's rows go with it") {
  EngineOptions options;
  options.model = kDemoModel;
  options.device = "sim:a,threads=1,row-split=1,sim:b,threads=1,row-split=1";
  options.device_budgets["sim:a"] = {Budget::Kind::bytes, 12 * MiB};
  options.device_budgets["sim:b"] = {Budget::Kind::bytes, 6 * MiB};
  options.split = "rows";
  auto engine = Engine::open(options);
  REQUIRE_MESSAGE(engine, engine.error().message);
  auto made = (*engine)->generate(small_request(), {}, {});
  REQUIRE_MESSAGE(made, made.error().message);
  CHECK(made->pictures[0].latent == drawn_on_one().latents[0]);
  for (const auto& block : made->plan.stages[1].blocks) CHECK(block.device == "sim:a");
  // time_embed.2 alone has 256 rows and columns.
  CHECK((*engine)->uses()[1].residents >= 64 * KiB);
  const auto refused = [&](const char* device, const char* split, const char* word) {
    EngineOptions wrong;
    wrong.model = kDemoModel;
    wrong.device = device;
    wrong.split = split;
    const auto opened = Engine::open(wrong);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().code == Code::invalid_argument);
    CHECK_MESSAGE(opened.error().message.find(word) != std::string::npos, opened.error().message);
    CHECK_MESSAGE(opened.error().message.find("blocks") != std::string::npos, opened.error().message);
  };
  refused("sim:a,threads=1,row-split=1", "rows", "there is one");
  refused("sim:a,threads=1,row-split=1,sim:b,threads=1", "rows", "the backend of sim:b does not");
  refused("cpu:threads=1,sim:b,threads=1,row-split=1", "rows", "the backend of cpu does not");
  refused("sim:a,threads=1", "columns", "'columns'");

  // Engine without a model of its own: its sessions' rows come and go with them.
  options.model.clear();
  engine = Engine::open(options);
  REQUIRE(engine);
  ModelOptions model = options;
  model.model = kDemoModel;
  for (int i = 0; i < 2; ++i) {
    auto session = (*engine)->add(model);
    REQUIRE_MESSAGE(session, session.error().message);
    REQUIRE((*session)->generate(small_request(), {}, {}));
    CHECK((*engine)->uses()[1].residents >= 64 * KiB);
    session->reset();
    CHECK((*engine)->uses()[1].residents == 0);
  }
}
