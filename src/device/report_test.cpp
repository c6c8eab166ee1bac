#include "device/report.h"

#include <doctest/doctest.h>

#include "device/probe.h"
#include "device/rate_probe.h"
#include "device/report_buffer.h"
#include "device/report_rates.h"
#include "device/sim_device.h"

using namespace sluice;

namespace {

std::unique_ptr<Device> open(const std::string& name) {
  auto device = open_device(name);
  REQUIRE_MESSAGE(device, device.error().message);
  return *std::move(device);
}

}  // namespace

TEST_CASE("weight types: every type is in one list; what the device lacks is unsupported") {
  for (const char* name : {"cpu:threads=1", "sim:threads=1"}) {
    const auto types = weight_types(*open(name));
    CHECK(types.raw.size() + types.by_tensor.size() + types.unsupported.size() == kWeightTypes.size());
    CHECK(types.raw.at(0) == "f32");
    CHECK(types.unsupported.empty());
  }
  const auto none = weight_types(*open("sim:threads=1,lacks=MUL_MAT"));
  CHECK(none.unsupported.size() == kWeightTypes.size());
}

TEST_CASE("usage: the CPU's is the registry's, the simulated device has none") {
  const auto cpu = usage_of(open("cpu:threads=1")->info());
  CHECK(cpu.maps_host_memory);
  CHECK_FALSE(cpu.async);
  const auto sim = usage_of(open("sim:threads=1")->info());
  CHECK_FALSE((sim.maps_host_memory || sim.async || sim.events || sim.pinned));
}

TEST_CASE("the largest buffer is found to one part in 32, leased while it is there, and given back") {
  for (const Bytes truth : {Bytes{1}, Bytes{1000}, MiB, 5 * MiB, 24 * MiB}) {
    CAPTURE(truth);
    SimOptions options{.memory = 64 * MiB, .max_buffer = truth, .threads = 1};
    auto sim = SimDevice::open(options);
    REQUIRE(sim);
    const auto found = find_largest_buffer(**sim, askable(**sim));
    CHECK(found.size <= truth);
    CHECK(found.size >= truth - truth / 32 - (truth < 64 ? 0 : 1));
    CHECK_FALSE(found.at_least);
    CHECK((*sim)->live_buffers() == 0);
    CHECK((*sim)->ledger().report().total == 0);
    CHECK((*sim)->log().size() <= 2 * 60);
  }
  // All that is free: nothing more is asked for, and nothing is refused.
  auto whole = SimDevice::open({.memory = 24 * MiB, .backend = 4 * MiB, .threads = 1});
  REQUIRE(whole);
  const auto found = find_largest_buffer(**whole, askable(**whole));
  CHECK(found.size == 20 * MiB);
  CHECK(found.at_least);
  for (const auto& event : (*whole)->log()) CHECK(event.ok);
  // What the books refuse is not to be had.
  (*whole)->ledger().set_limit(3 * MiB);
  CHECK(find_largest_buffer(**whole, 20 * MiB).size == 3 * MiB);
  CHECK(find_largest_buffer(**whole, 0).size == 0);
}

TEST_CASE("rates: a device with rates of its own is measured to have them, and hides copies beside compute") {
  auto sim = open("sim:threads=1,memory=256MiB,pinned=64MiB,link=200MB/s,latency=20us,compute=50GFLOPS");
  const auto m = measure_rates(*sim, CancelToken{});
  REQUIRE_MESSAGE(m, m.error().message);
  CHECK(m->to_device == 200e6);
  CHECK(m->to_device_pinned == 200e6);
  CHECK(m->from_device == 200e6);
  CHECK(m->from_device_pinned == 200e6);
  CHECK(m->latency_s == doctest::Approx(20e-6).epsilon(1e-15));  // round_rate: to the last bit or the one before
  CHECK(m->flops_per_s == 50e9);
  CHECK(m->overlap == 1);
  CHECK(sim->ledger().report().total == 0);
  CHECK(sim->live_buffers() == 0);
}

TEST_CASE("rates: what takes no time or is not there is zero") {
  auto sim = open("sim:threads=1,memory=1MiB,link=200MB/s");
  const auto m = measure_rates(*sim, CancelToken{});
  REQUIRE_MESSAGE(m, m.error().message);
  CHECK(m->to_device == 200e6);
  CHECK(m->to_device_pinned == 0);
  CHECK(m->flops_per_s == 0);
  CHECK(m->overlap < 0);
}

TEST_CASE("rates: the CPU's are real, rounded and given back") {
  auto cpu = open("cpu:threads=1");
  const Bytes before = cpu->ledger().report().total;
  const auto m = measure_rates(*cpu, CancelToken{});
  REQUIRE_MESSAGE(m, m.error().message);
  for (const double rate : {m->to_device, m->from_device, m->flops_per_s, m->latency_s}) {
    CHECK(rate > 0);
    CHECK(round_rate(rate) == rate);
  }
  CHECK(m->to_device_pinned == 0);  // the CPU's own memory is the host's
  CHECK(m->flops_per_s > 1e8);
  CHECK(m->overlap >= 0);
  CHECK(m->overlap <= 1);
  CHECK(cpu->ledger().report().total == before);
}

TEST_CASE("rates: refusals, faults and cancelling are errors, and leave nothing behind") {
  for (const char* fault : {"fail-alloc=3", "fail-copy=4", "fail-compute=2", "fail-host=1", "lacks=MUL_MAT"}) {
    CAPTURE(fault);
    auto sim = open(std::string("sim:threads=1,memory=1MiB,") + fault);
    CHECK_FALSE(measure_rates(*sim, CancelToken{}));
    CHECK(sim->ledger().report().total == 0);
    CHECK(sim->live_buffers() == 0);
  }
  CancelToken cancel;
  cancel.cancel();
  CHECK(measure_rates(*open("sim:threads=1,memory=1MiB"), cancel).error().code == Code::cancelled);
}
