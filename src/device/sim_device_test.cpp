#include "device/sim_device.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "device/test_graphs.h"

#if __has_include(<sys/wait.h>)
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#define SLUICE_CAN_FORK 1
#endif

using namespace sluice;
using Kind = SimEvent::Kind;

namespace {

std::unique_ptr<SimDevice> open_sim(SimOptions options) {
  if (options.threads == 0) options.threads = 2;
  auto sim = SimDevice::open(options);
  REQUIRE(sim);
  return std::move(*sim);
}

/// A product in an arena of its own.
struct Run {
  explicit Run(SimDevice& sim, std::int64_t k = 64, std::int64_t m = 32, std::int64_t n = 8) : product(k, m, n) {
    arena = Arena::open(sim, product.bytes(sim)).value();
    product.bind(sim, arena);
  }
  TestProduct product;
  Arena arena;
};

/// The most bytes held at once, from the log alone.
Bytes high_water_of(const std::vector<SimEvent>& log, Bytes backend) {
  Bytes live = 0, most = backend;
  for (const SimEvent& event : log) {
    if (!event.ok) continue;
    if (event.kind == Kind::alloc) live += event.bytes;
    if (event.kind == Kind::free) live -= event.bytes;
    if (event.kind == Kind::backend) backend = event.bytes;
    most = std::max(most, live + backend);
  }
  return most;
}

}  // namespace

TEST_CASE("sim: computes, counts and logs") {
  auto sim = open_sim({.memory = MiB});
  {
    Run run(*sim);
    CHECK(sim->memory().free == MiB - run.arena.size());
    REQUIRE(sim->compute(run.product.graph(), 0, CancelToken{}));
    CHECK(run.product.result(*sim) == run.product.expected());
  }
  const auto counters = sim->counters();
  CHECK(counters.allocs == 1);
  CHECK(counters.frees == 1);
  CHECK(counters.sets == 2);
  CHECK(counters.gets == 1);
  CHECK(counters.computes == 1);
  CHECK(counters.weight_bytes_set == 4 * (64 * 32 + 64 * 8));
  CHECK(counters.bytes_got == 4 * 32 * 8);
  std::vector<Kind> kinds;
  for (const SimEvent& event : sim->log()) {
    CHECK(event.ok);
    CHECK(event.index == kinds.size());
    kinds.push_back(event.kind);
  }
  // A product of f32 matrices needs no work buffer.
  CHECK((kinds == std::vector{Kind::alloc, Kind::set, Kind::set, Kind::compute, Kind::get, Kind::free}));
  CHECK(sim->memory().free == MiB);
}

TEST_CASE("sim: the high-water mark is the log's, with what the backend holds") {
  auto sim = open_sim({.memory = MiB, .backend = 1000});
  CHECK(sim->high_water() == 1000);
  TestProduct product(512, 16, 40, GGML_TYPE_Q8_0);
  ggml_cgraph* graphs[] = {product.graph()};
  const Bytes measured = sim->measure_backend(graphs).value();
  CHECK(measured > 1000 + 512 * 40);
  {
    auto arena = Arena::open(*sim, product.bytes(*sim)).value();
    product.bind(*sim, arena);
    REQUIRE(sim->compute(product.graph(), 0, CancelToken{}));
    CHECK(sim->high_water() == arena.size() + measured);
  }
  Arena::open(*sim, 100).value();
  CHECK(sim->high_water() == high_water_of(sim->log(), 1000));
}

TEST_CASE("sim: refuses like a driver, by capacity, by size and by number of buffers") {
  auto sim = open_sim({.memory = 10'000, .max_buffer = 4096, .preferred_buffer = 8192, .max_buffers = 2, .backend = 2000});
  CHECK(sim->info().max_buffer == 8192);
  const auto larger = sim->allocate(5000);  // what it says it can, and cannot
  REQUIRE_FALSE(larger);
  CHECK(larger.error().code == Code::device_oom);
  CHECK(sim->allocate(8193).error().code == Code::device_oom);
  {
    auto a = sim->allocate(4000), b = sim->allocate(2000);
    REQUIRE((a && b));
    const auto third = sim->allocate(100);
    REQUIRE_FALSE(third);
    CHECK(third.error().message.find("2 buffers") != std::string::npos);
    b->reset();
    const auto above = sim->allocate(4001);
    REQUIRE_FALSE(above);
    CHECK(above.error().needed == 4001);
    CHECK(above.error().available == 4000);
    CHECK(sim->allocate(4000));
  }
  CHECK(sim->live_buffers() == 0);
  CHECK(sim->high_water() == 10'000);
}

TEST_CASE("sim: free memory in pieces: a larger buffer only while no other is there") {
  auto sim = open_sim({.memory = 10'000, .fragment = 1000});
  auto large = sim->allocate(8000);
  REQUIRE(large);
  CHECK(sim->allocate(1000));
  const auto refused = sim->allocate(1001);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::device_oom);
  CHECK(refused.error().message.find("in one") != std::string::npos);
  large->reset();
  CHECK(sim->allocate(1001));
}

TEST_CASE("sim: late frees, by calls and by time") {
  auto by_calls = open_sim({.memory = 10'000, .max_buffers = 1, .late_free_calls = 2});
  by_calls->allocate(10'000)->reset();
  CHECK(by_calls->live_buffers() == 0);
  CHECK(by_calls->memory().free == 0);
  CHECK_FALSE(by_calls->allocate(1));
  by_calls->synchronise();
  CHECK(by_calls->memory().free == 10'000);
  CHECK(by_calls->allocate(10'000));

  auto by_time = open_sim({.memory = 10'000, .late_free_s = 0.02});
  const auto start = std::chrono::steady_clock::now();
  by_time->allocate(10'000)->reset();
  while (!by_time->allocate(10'000)) std::this_thread::yield();
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(20));
}

TEST_CASE("sim: a submit is refused for the number of buffers, whoever has them") {
  TestProduct product(64, 32, 8);
  auto sim = open_sim({.max_submit_buffers = 1});
  auto arena = Arena::open(*sim, product.bytes(*sim)).value();
  product.bind(*sim, arena);
  {
    const auto other = sim->allocate(1);
    const auto refused = sim->compute(product.graph(), 0, CancelToken{});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::device_oom);
    CHECK(refused.error().message.find("2 buffers") != std::string::npos);
  }
  REQUIRE(sim->compute(product.graph(), 0, CancelToken{}));
  CHECK(product.result(*sim) == product.expected());
}

TEST_CASE("sim: an operator that it lacks is not supported, and not run") {
  TestProduct product(64, 32, 8);
  auto able = open_sim({}), unable = open_sim({.lacks = {"MUL_MAT"}});
  CHECK(able->supports(product.output()));
  CHECK_FALSE(unable->supports(product.output()));
  auto arena = Arena::open(*unable, product.bytes(*unable)).value();
  product.bind(*unable, arena);
  CHECK(unable->compute(product.graph(), 0, CancelToken{}).error().code == Code::device_failed);
}

TEST_CASE("sim: a work buffer that does not fit is refused when it is first needed") {
  TestProduct product(512, 16, 40, GGML_TYPE_Q8_0);
  auto probe = open_sim({});
  ggml_cgraph* graphs[] = {product.graph()};
  const Bytes needed = product.bytes(*probe) + probe->measure_backend(graphs).value();
  for (const Bytes memory : {needed - 1, needed}) {
    TestProduct own(512, 16, 40, GGML_TYPE_Q8_0);
    auto sim = open_sim({.memory = memory});
    auto arena = Arena::open(*sim, own.bytes(*sim)).value();
    own.bind(*sim, arena);
    const auto ended = sim->compute(own.graph(), 0, CancelToken{});
    CHECK(ended.has_value() == (memory == needed));
    if (!ended) CHECK(ended.error().code == Code::device_oom);
    CHECK(sim->high_water() <= memory);
  }
}

TEST_CASE("sim: the n-th operation fails, once") {
  for (const std::uint64_t n : {1, 2, 3}) {
    CAPTURE(n);
    auto sim = open_sim({.fail_alloc = n, .fail_host = n, .fail_copy = n, .fail_compute = n});
    for (std::uint64_t i = 1; i <= 4; ++i) {
      const auto host = sim->allocate_host(10);
      CHECK(host.has_value() == (i != n));
      if (!host) CHECK(host.error().code == Code::device_oom);
      CHECK(sim->allocate(10).has_value() == (i != n));
    }
    TestProduct product(64, 32, 8);
    auto arena = Arena::open(*sim, product.bytes(*sim)).value();
    ggml_tensor* tensors[] = {product.weight(), product.input(), product.output()};
    Address at = 0;
    for (ggml_tensor* tensor : tensors) {
      REQUIRE(arena.bind(tensor, at));
      at += ggml_nbytes(tensor);
    }
    std::vector<std::byte> bytes(64);
    for (std::uint64_t i = 1; i <= 4; ++i) {
      const auto copied =
          i % 2 ? sim->set(product.weight(), 0, bytes, 0, CancelToken{}) : sim->get(product.input(), 0, bytes, 0);
      CHECK(copied.has_value() == (i != n));
      if (!copied) CHECK(copied.error().code == Code::device_failed);
    }
    for (std::uint64_t i = 1; i <= 4; ++i) {
      const auto ended = sim->compute(product.graph(), 0, CancelToken{});
      CHECK(ended.has_value() == (i != n));
      if (!ended) CHECK(ended.error().code == Code::device_failed);
    }
  }
}

TEST_CASE("sim: fresh and discarded bytes are NaN, unless told otherwise") {
  for (const bool poison : {true, false}) {
    CAPTURE(poison);
    auto sim = open_sim({.poison = poison});
    TestProduct product(64, 32, 8);
    auto arena = Arena::open(*sim, product.bytes(*sim)).value();
    product.bind(*sim, arena);
    const auto fresh = product.result(*sim);
    CHECK(std::ranges::all_of(fresh, [&](float x) { return poison ? std::isnan(x) : x == 0; }));
    REQUIRE(sim->compute(product.graph(), 0, CancelToken{}));
    CHECK(product.result(*sim) == product.expected());
    arena.discard(0, ggml_nbytes(product.weight()));
    REQUIRE(sim->compute(product.graph(), 0, CancelToken{}));
    const auto after = product.result(*sim);
    if (poison)
      CHECK(std::ranges::all_of(after, [](float x) { return std::isnan(x); }));
    else
      CHECK(after == product.expected());
  }
}

#ifdef SLUICE_CAN_FORK
TEST_CASE("sim: the host cannot touch its memory outside set, get and compute") {
  auto sim = open_sim({});
  Run run(*sim);
  REQUIRE(sim->compute(run.product.graph(), 0, CancelToken{}));
  const auto child_dies_reading = [](const void* address) {
    const pid_t child = fork();
    if (child == 0) {
      // A sanitizer's own handler would print and exit; the fault itself is what is wanted.
      std::signal(SIGSEGV, SIG_DFL);
      std::signal(SIGBUS, SIG_DFL);
      const volatile char value = *static_cast<const volatile char*>(address);
      static_cast<void>(value);
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
  };
  for (const ggml_tensor* tensor : {run.product.weight(), run.product.input(), run.product.output()})
    CHECK(child_dies_reading(tensor->data));
  CHECK_FALSE(child_dies_reading(&run));
}
#endif

TEST_CASE("sim: virtual time is that of the rates, whatever the threads do") {
  // 64 × 32 × 8 products take 2 · 64 · 32 · 8 operations; uploads 8 and 2 KiB, the result 1 KiB.
  std::vector<std::vector<std::tuple<Kind, Moment, Moment>>> timelines;
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    auto sim = open_sim({.link_bytes_per_s = 1e6,
                         .flops_per_s = 1e6,
                         .link_latency_s = 1e-3,
                         .node_s = 2e-3,
                         .delay_seed = seed,
                         .delay_s = 1e-3});
    TestProduct product(64, 32, 8), other(64, 32, 8);
    auto arena = Arena::open(*sim, product.bytes(*sim) + other.bytes(*sim)).value();
    other.bind(*sim, arena, product.bind(*sim, arena));
    const std::vector<std::byte> weights(8192);
    std::vector<std::byte> result(1024);
    std::thread link([&] {
      for (int i = 0; i < 5; ++i) CHECK(sim->set(other.weight(), 0, weights, 0, CancelToken{}));
    });
    Moment at = 0;
    for (int i = 0; i < 5; ++i) {
      at = sim->set(product.input(), 0, std::span(weights).first(2048), at, CancelToken{}, Transfer::state).value();
      at = sim->compute(product.graph(), at, CancelToken{}).value();
      at = sim->get(product.output(), 0, result, at).value();
    }
    link.join();
    auto& timeline = timelines.emplace_back();
    for (const SimEvent& event : sim->log())
      if (event.kind == Kind::set || event.kind == Kind::get || event.kind == Kind::compute)
        timeline.emplace_back(event.kind, event.start, event.end);
    std::ranges::sort(timeline);
    // Exactly: each operation is rounded to whole nanoseconds.
    const Moment upload = 1'000'000 + 2'048'000, compute = 2'000'000 + 32'768'000, download = 1'000'000 + 1'024'000;
    CHECK(at == 5 * (upload + compute + download));
    // The binding uploads went before: two weights of 8192 bytes and two inputs of 2048.
    const Moment bound = 2 * (1'000'000 + 8'192'000) + 2 * (1'000'000 + 2'048'000);
    CHECK(std::get<2>(*std::ranges::max_element(timeline, {}, [](const auto& e) {
            return std::get<0>(e) == Kind::set && std::get<2>(e) - std::get<1>(e) == 9'192'000 ? std::get<2>(e) : 0;
          })) == bound + 5 * 9'192'000);
    CHECK(sim->rates().link_bytes_per_s == 1e6);
    CHECK(sim->rates().flops_per_s == 1e6);
  }
  for (const auto& timeline : timelines) CHECK(timeline == timelines[0]);
}

TEST_CASE("sim: without rates it runs in real time") {
  auto sim = open_sim({});
  Run run(*sim);
  const auto before = std::chrono::steady_clock::now().time_since_epoch();
  const Moment end = sim->compute(run.product.graph(), 0, CancelToken{}).value();
  const auto after = std::chrono::steady_clock::now().time_since_epoch();
  CHECK(end >= std::chrono::duration_cast<std::chrono::nanoseconds>(before).count());
  CHECK(end <= std::chrono::duration_cast<std::chrono::nanoseconds>(after).count());
}

TEST_CASE("sim: delays come from their seed and change no bit") {
  const auto seconds = [](std::optional<std::uint64_t> seed) {
    auto sim = open_sim({.delay_seed = seed, .delay_s = 0.02});
    Run run(*sim);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 8; ++i) REQUIRE(sim->compute(run.product.graph(), 0, CancelToken{}));
    CHECK(run.product.result(*sim) == run.product.expected());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  // Sixteen draws, each none or up to 20 ms: these seeds draw far more than 20 ms in all.
  CHECK(seconds(1) > 0.02);
  CHECK(seconds(7) > 0.02);
}

TEST_CASE("sim: cancelling at any event gives a cancelled operation and a device that still works") {
  std::uint64_t events = 0;
  {
    auto sim = open_sim({});
    {
      Run run(*sim);
      REQUIRE(sim->compute(run.product.graph(), 0, CancelToken{}));
    }
    events = sim->log().size();
  }
  REQUIRE(events >= 5);
  for (std::uint64_t n = 0; n < events; ++n) {
    CAPTURE(n);
    auto sim = open_sim({});
    CancelToken cancel;
    sim->on_event([&](const SimEvent& event) {
      if (event.index == n) cancel.cancel();
    });
    {
      TestProduct product(64, 32, 8);
      auto arena = Arena::open(*sim, product.bytes(*sim)).value();
      Address at = 0;
      for (ggml_tensor* tensor : {product.weight(), product.input(), product.output()}) {
        REQUIRE(arena.bind(tensor, at));
        at += ggml_nbytes(tensor);
      }
      const std::vector<std::byte> bytes(8192);
      const auto work = [&]() -> Status {
        SLUICE_TRY(sim->set(product.weight(), 0, bytes, 0, cancel));
        SLUICE_TRY(sim->set(product.input(), 0, std::span(bytes).first(2048), 0, cancel));
        SLUICE_TRY(sim->compute(product.graph(), 0, cancel));
        return {};
      };
      const Status done = work();
      if (n + 1 < events) {  // the last event is the arena's end
        REQUIRE_FALSE(done);
        CHECK(done.error().code == Code::cancelled);
      }
      cancel.reset();
      sim->on_event({});
      CHECK(work());
    }
    CHECK(sim->live_buffers() == 0);
    CHECK(sim->ledger().report().total == 0);
  }
}

TEST_CASE("sim: a graph without memory is refused") {
  auto sim = open_sim({});
  TestProduct product(64, 32, 8);
  const auto ended = sim->compute(product.graph(), 0, CancelToken{});
  REQUIRE_FALSE(ended);
  CHECK(ended.error().code == Code::device_failed);
}

TEST_CASE("sim: hostile reports are passed through and clamped like any driver's") {
  auto sim = open_sim({.memory = MiB, .free = 2 * MiB});
  CHECK_FALSE(sim->memory().known);
  CHECK(sim->memory().free == MiB);
  sim->set_report(512 * KiB, MiB);
  CHECK(sim->memory().known);
  CHECK(sim->memory().free == 512 * KiB);
  sim->set_report(0, 0);
  CHECK(sim->memory().total == 0);
  CHECK_FALSE(sim->memory().known);
  CHECK_FALSE(open_sim({.total = ~Bytes{0}})->memory().known);
}

TEST_CASE("sim: set beside compute from another thread, in one buffer") {
  auto sim = open_sim({});
  TestChain chain(64, 10);
  TestProduct other(256, 64, 4);
  const Address split = align_up(chain.bytes(*sim), 4096);
  auto arena = Arena::open(*sim, split + other.bytes(*sim)).value();
  chain.bind(*sim, arena);
  other.bind(*sim, arena, split);
  std::thread link([&] {
    const std::vector<std::byte> bytes(ggml_nbytes(other.weight()), std::byte{1});
    for (int i = 0; i < 100; ++i) {
      arena.discard(split, bytes.size());
      CHECK(sim->set(other.weight(), 0, bytes, 0, CancelToken{}));
    }
  });
  for (int i = 0; i < 4; ++i) CHECK(sim->compute(chain.graph(), 0, CancelToken{}));
  link.join();
  std::vector<std::byte> read(ggml_nbytes(other.weight()));
  REQUIRE(sim->get(other.weight(), 0, read, 0));
  CHECK(std::ranges::all_of(read, [](std::byte b) { return b == std::byte{1}; }));
}

TEST_CASE("sim options: what is wrong is named") {
  const auto message = [](const std::string& text) {
    const auto refused = open_device(fmt::format("sim:{}", text));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::invalid_argument);
    return refused.error().message;
  };
  std::map<std::string, std::string> wrong;
  for (const auto name : sim_option_names()) wrong[std::string(name)] = "?";
  for (const auto& [name, value] : wrong)
    CHECK(message(fmt::format("{}={}", name, value)).find(fmt::format("'{}'", name)) != std::string::npos);
  CHECK(message("speed=1").find("'speed'") != std::string::npos);
  CHECK(message("memory=0").find("'memory'") != std::string::npos);
  CHECK(message("max-buffer=0").find("'max-buffer'") != std::string::npos);
  CHECK(message("preferred-buffer=0").find("'preferred-buffer'") != std::string::npos);
  CHECK(message("memory=1MiB,backend=2MiB").find("'backend'") != std::string::npos);
  CHECK(message("latency=1us").find("'latency'") != std::string::npos);
  CHECK(message("node=1us").find("'node'") != std::string::npos);
  CHECK(message("delay=2s").find("'delay'") != std::string::npos);
  CHECK(message("fragment=0").find("'fragment'") != std::string::npos);
  CHECK(message("late-free=0").find("'late-free'") != std::string::npos);
  CHECK(message("late-free=2s").find("'late-free'") != std::string::npos);
  CHECK(message("lacks=GELU+NONSENSE").find("'NONSENSE'") != std::string::npos);
  CHECK(message("poison=2").find("'poison'") != std::string::npos);
}

TEST_CASE("sim: host memory is pinned up to the cap, then pageable with one warning; what goes counts no more") {
  int warnings = 0;
  auto device = SimDevice::open({.pinned = 100 * KiB, .threads = 1});
  REQUIRE(device);
  (*device)->set_log(LogSink([&](LogLevel level, std::string_view) { warnings += level == LogLevel::warning; }));
  auto first = (*device)->allocate_host(60 * KiB), second = (*device)->allocate_host(40 * KiB);
  REQUIRE(first);
  REQUIRE(second);
  CHECK((*first)->pinned());
  CHECK((*second)->pinned());
  CHECK(warnings == 0);
  for (int i = 0; i < 2; ++i) {
    const auto beyond = (*device)->allocate_host(1);
    REQUIRE(beyond);
    CHECK_FALSE((*beyond)->pinned());
  }
  CHECK(warnings == 1);
  first->reset();
  const auto again = (*device)->allocate_host(60 * KiB);
  REQUIRE(again);
  CHECK((*again)->pinned());
  std::ranges::fill((*again)->bytes(), std::byte{1});

  auto plain = open_device("sim:threads=1");
  REQUIRE(plain);
  CHECK_FALSE((*(*plain)->allocate_host(10))->pinned());
  auto named = open_device("sim:pinned=1KiB,threads=1");
  REQUIRE(named);
  CHECK((*(*named)->allocate_host(1024))->pinned());
}

TEST_CASE("sim options: every option has an example in docs/simulated-device.md that opens") {
  std::ifstream file(SLUICE_SOURCE_DIR "/docs/simulated-device.md");
  REQUIRE(file);
  std::stringstream text;
  text << file.rdbuf();
  const std::string doc = text.str();
  std::string examples;
  for (std::size_t at = 0; (at = doc.find("`sim", at)) != std::string::npos;) {
    const std::size_t end = doc.find('`', at + 1);
    REQUIRE(end != std::string::npos);
    const std::string example = doc.substr(at + 1, end - at - 1);
    CAPTURE(example);
    CHECK(open_device(example));
    examples += example + ",";
    at = end + 1;
  }
  for (const auto name : sim_option_names()) {
    CAPTURE(name);
    CHECK((examples.find(fmt::format(":{}=", name)) != std::string::npos ||
           examples.find(fmt::format(",{}=", name)) != std::string::npos));
  }
}
