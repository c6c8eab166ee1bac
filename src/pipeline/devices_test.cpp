#include "sluice/devices.h"

#include <doctest/doctest.h>

#include "io/test_folder.h"

using namespace sluice;

namespace {

DeviceSummary one(DevicesOptions options) {
  auto list = devices(options);
  REQUIRE_MESSAGE(list, list.error().message);
  REQUIRE(list->size() == 1);
  return (*list)[0];
}

}  // namespace

TEST_CASE("devices: the cpu and how the simulated one is opened; nothing is measured unasked") {
  const auto list = devices();
  REQUIRE(list.size() >= 2);
  bool cpu = false;
  for (const auto& d : list) {
    cpu = cpu || (d.name == "cpu" && d.kind == "cpu" && d.host_memory && d.maps_host_memory && d.memory_known);
    CHECK_FALSE(d.measured);
  }
  CHECK(cpu);
  CHECK(list.back().name == "sim");
  CHECK(list.back().note.find("sim:memory=") != std::string::npos);
}

TEST_CASE("devices: a measured cpu is found in the cache again, with as many threads") {
  const test::Folder folder;
  DevicesOptions options;
  options.device = "cpu:threads=1";
  options.cache_folder = folder / "sluice";
  CHECK_FALSE(one(options).measured);
  options.measure = true;
  std::vector<std::string> told;
  options.progress = [&](const std::string& device, const std::string& doing) { told.push_back(device + " " + doing); };
  const auto fresh = one(options);
  REQUIRE(fresh.measured);
  CHECK(told.size() == 3);
  CHECK(fresh.measured->to_device > 0);
  CHECK(fresh.measured->flops_per_s > 0);
  CHECK(fresh.measured->largest_buffer >= MiB);
  CHECK(fresh.measured->raw_types.size() == 15);
  options.measure = false;
  const auto again = one(options);
  REQUIRE(again.measured);
  CHECK(again.measured->to_device == fresh.measured->to_device);
  CHECK(again.measured->largest_buffer == fresh.measured->largest_buffer);
  options.device = "cpu:threads=2";
  CHECK_FALSE(one(options).measured);
}

TEST_CASE("devices: a simulated device is measured where it is named, and not kept") {
  const test::Folder folder;
  DevicesOptions options;
  options.device = "sim:threads=1,memory=24MiB,max-buffer=3MiB,link=200MB/s,compute=50GFLOPS";
  options.cache_folder = folder / "";
  options.measure = true;
  const auto sim = one(options);
  CHECK(sim.kind == "simulated");
  CHECK(sim.total == 24 * MiB);
  REQUIRE(sim.measured);
  CHECK(sim.measured->largest_buffer == 3 * MiB);
  CHECK_FALSE(sim.measured->largest_at_least);
  CHECK(sim.measured->to_device == 200e6);
  CHECK(sim.measured->overlap == 1);
  CHECK(folder.entries() == 0);
}

TEST_CASE("devices: a report that cannot be believed is marked, with the reason") {
  struct Row {
    const char* report;
    const char* doubt;
  };
  for (const Row row : {Row{"total=0", "no memory at all"}, Row{"free=9GiB,total=8GiB", "more is free than there is"},
                        Row{"free=18446744073709551615,total=8GiB", "below zero"},
                        Row{"total=18446744073709551615", "than an address reaches"}}) {
    DevicesOptions options;
    options.device = std::string("sim:threads=1,") + row.report;
    const auto sim = one(options);
    CHECK_FALSE(sim.memory_known);
    CHECK_MESSAGE(sim.memory_doubt.find(row.doubt) != std::string::npos, sim.memory_doubt);
    CHECK(sim.free <= sim.total);  // clamped
  }
}

TEST_CASE("devices: a folder that cannot be written is a warning; a device that fails is an error") {
  const test::Folder folder;
  test::spill(folder / "file", {std::byte{1}});
  DevicesOptions options;
  options.device = "cpu:threads=1";
  options.measure = true;
  options.cache_folder = folder / "file/below";
  int warnings = 0;
  options.log = LogSink([&](LogLevel level, std::string_view) { warnings += level == LogLevel::warning; });
  CHECK(one(options).measured);
  CHECK(warnings == 1);
  options.device = "sim:threads=1,memory=24MiB,fail-compute=9";
  CHECK(devices(options).error().code == Code::device_failed);
  options.device = "nonsense";
  CHECK(devices(options).error().code == Code::not_found);
  options.device = "sim:threads=1,memory=24MiB";
  options.cancel.cancel();
  CHECK(devices(options).error().code == Code::cancelled);
}

TEST_CASE("measure_disk: bytes and a rate of two figures, or the file's error") {
  const test::Folder folder;
  test::spill(folder / "file", std::vector<std::byte>(5 * MiB));
  const auto rate = measure_disk(folder / "file");
  REQUIRE(rate);
  CHECK(rate->bytes == 5 * MiB);
  CHECK(rate->bytes_per_s > 0);
  CHECK(measure_disk(folder / "none").error().code == Code::not_found);
}
