// Drivers that refuse with memory free: for the number of buffers, for pieces too small, for frees that come late.
#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "device/sim_device.h"
#include "exec/session.h"
#include "pipeline/run_stage.h"
#include "support/two_block_model.h"

using namespace sluice;
using namespace sluice::test;

namespace {

constexpr std::size_t kBlocks = 200;

const TwoBlockModel& chain() {
  static const TwoBlockModel model("chain", kBlocks, 32, 5);
  return model;
}

/// 200 blocks on a simulated device.
class Chain {
 public:
  explicit Chain(SimOptions options, std::optional<Bytes> budget = {}) {
    options.threads = 1;
    auto sim = SimDevice::open(options);
    REQUIRE(sim);
    device_ = std::move(*sim);
    store_ = std::make_unique<WeightStore>(*device_, WeightStore::Options{HostTier::read, std::nullopt, {}});
    memory_ = std::make_unique<DeviceMemory>(*device_, *store_, DeviceMemory::Options{budget, {}, {}});
    session_ = std::make_unique<Session>(std::vector<DeviceMemory*>{memory_.get()}, *store_, SessionOptions{});
    auto spec = chain().spec(std::make_shared<Countdown>());
    REQUIRE(spec);
    auto id = store_->add(*std::move(spec));
    REQUIRE(id);
    const auto shape = chain().input_shape();
    specs_ = {{"chain", *id, {lane_shape({{shape[0], shape[1], 1, 1}})}, 2}};
  }
  ~Chain() {
    session_.reset();
    memory_.reset();
  }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  SimDevice& device() { return *device_; }
  DeviceMemory& memory() { return *memory_; }
  Session& session() { return *session_; }
  Bytes smallest() { return plan().plan().smallest + plan().backend(); }
  Bytes full() { return plan().plan().full + plan().backend(); }

  /// Two sweeps; the output of the second.
  Result<std::vector<float>> run() {
    SLUICE_ASSIGN(Prepared* const prepared, session_->prepare(specs_));
    auto done = session_->bind(*prepared, CancelToken{});
    Result<std::vector<float>> out = done ? sweeps(*prepared) : fail(std::move(done).error());
    session_->end();
    session_->finish(out.has_value());
    return out;
  }

 private:
  Prepared& plan() {
    auto prepared = session_->prepare(specs_);
    REQUIRE(prepared);
    return **prepared;
  }
  Result<std::vector<float>> sweeps(Prepared& prepared) {
    SLUICE_ASSIGN(const auto runner, session_->begin(prepared, 0, {}));
    const auto input = chain().input(0);
    std::vector<float> output(chain().input_elements());
    for (int sweep = 0; sweep < 2; ++sweep) {
      SLUICE_TRY(runner->write(0, chain().model().inputs[0].value, std::as_bytes(std::span(input))));
      SLUICE_TRY(runner->sweep([](int) {}));
      SLUICE_TRY(runner->read(0, chain().model().outputs[0], std::as_writable_bytes(std::span(output))));
      runner->finish();
    }
    return output;
  }

  std::unique_ptr<SimDevice> device_;
  std::unique_ptr<WeightStore> store_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<Session> session_;
  std::vector<StageSpec> specs_;
};

struct Wanted {
  std::vector<float> output;
  Bytes smallest = 0, full = 0;
};
const Wanted& wanted() {
  static const Wanted made = [] {
    Chain free({});
    auto output = free.run();
    REQUIRE(output);
    return Wanted{*output, free.smallest(), free.full()};
  }();
  return made;
}

void check_refused(Chain& c, const std::vector<std::string>& parts) {
  const auto refused = c.run();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::device_oom);
  for (const auto& part : parts)
    CHECK_MESSAGE(refused.error().message.find(part) != std::string::npos, refused.error().message);
  c.session().release();
  CHECK(c.device().ledger().report().total == 0);
  CHECK(c.device().live_buffers() == 0);
}

void check_works(Chain& c) {
  const auto output = c.run();
  REQUIRE_MESSAGE(output, output.error().message);
  CHECK(*output == wanted().output);
}

}  // namespace

TEST_CASE("200 blocks: at most 32 buffers, and no more are there at a submit, at every budget and with small buffers") {
  const auto [output, smallest, full] = wanted();
  for (const Bytes largest : {GiB, full / 4 / 4096 * 4096}) {
    for (const Bytes budget : {smallest, smallest + (full - smallest) / 3, smallest + (full - smallest) * 2 / 3, full}) {
      CAPTURE(largest);
      CAPTURE(budget);
      Chain c({.memory = full, .max_buffer = largest, .max_buffers = 32, .max_submit_buffers = 32}, budget);
      check_works(c);
      check_works(c);
      CHECK(c.device().live_buffers() <= 32);
      CHECK(c.device().high_water() <= budget);
      for (const auto& event : c.device().log()) CHECK(event.ok);
    }
  }
}

TEST_CASE("a submit refused for the number of buffers: device_oom, clean books; with fewer buffers it works") {
  const auto [output, smallest, full] = wanted();
  Chain c({.max_submit_buffers = 1}, full);
  check_refused(c, {"submit", "chain0"});
  c.memory().set_budget(smallest);  // all in the zone, which is one buffer
  check_works(c);
  CHECK(c.device().live_buffers() == 1);
}

TEST_CASE("free memory in pieces: a larger shelf is refused with the reason, smaller ones are had") {
  const auto [output, smallest, full] = wanted();
  Bytes shelf = 0;
  {
    Chain c({}, full);
    check_works(c);
    for (const auto& event : c.device().log())
      if (event.kind == SimEvent::Kind::alloc && event.bytes != c.memory().zone()) shelf = std::max(shelf, event.bytes);
  }
  REQUIRE(shelf > 0);
  Chain pieces({.fragment = shelf - 1}, full);
  check_refused(pieces,
                {"no piece above", "buffer", "alive", "free by its report", "asked 10 times", "the driver's own limits"});
  pieces.memory().set_budget(smallest);
  check_works(pieces);
  Chain enough({.fragment = shelf}, full);
  check_works(enough);
}

TEST_CASE("memory that comes free late is waited for, at most 100 ms; then it is a refusal, and later it works") {
  const Bytes full = wanted().full;
  for (const double late : {0.03, 0.6}) {
    CAPTURE(late);
    Chain c({.memory = full, .late_free_s = late}, full);
    check_works(c);
    c.session().release();
    if (late < 0.1) {
      check_works(c);
      continue;
    }
    check_refused(c, {"so much is not left", "free by its report", "asked 10 times", "lower the device budget, or close"});
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    check_works(c);
  }
}

TEST_CASE("a cache makes way where the driver refuses for the number of buffers") {
  const Bytes full = wanted().full;
  int buffers = 0;
  {
    Chain c({}, full);
    check_works(c);
    buffers = c.device().live_buffers();
  }
  Chain c({.max_buffers = buffers}, full + MiB);
  const auto cache = c.memory().add_cache(MiB);
  REQUIRE(cache);
  check_works(c);
  CHECK_FALSE(c.memory().find_cache(*cache));
  CHECK(c.device().live_buffers() == buffers);
}
