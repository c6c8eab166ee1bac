#include "pipeline/device_cache.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "io/test_folder.h"

using namespace sluice;

namespace {

DeviceInfo card() {
  DeviceInfo info;
  info.name = "gpu0";
  info.description = "A Card";
  info.device_id = "0000:01:00.0";
  info.kind = DeviceKind::gpu;
  info.threads = 0;
  return info;
}

DeviceMeasurement measured() {
  DeviceMeasurement m;
  m.largest_buffer = 3 * GiB;
  m.largest_at_least = true;
  m.to_device = 12e9;
  m.to_device_pinned = 25e9;
  m.from_device = 11e9;
  m.from_device_pinned = 24e9;
  m.latency_s = 1.1e-5;
  m.flops_per_s = 4.7e13;
  m.overlap = 0.93;
  m.raw_types = {"f32", "q8_0"};
  m.by_tensor_types = {"q4_0"};
  m.unsupported_types = {"iq4_xs"};
  return m;
}

bool same(const DeviceMeasurement& a, const DeviceMeasurement& b) {
  return a.largest_buffer == b.largest_buffer && a.largest_at_least == b.largest_at_least && a.to_device == b.to_device &&
         a.to_device_pinned == b.to_device_pinned && a.from_device == b.from_device &&
         a.from_device_pinned == b.from_device_pinned && a.latency_s == b.latency_s && a.flops_per_s == b.flops_per_s &&
         a.overlap == b.overlap && a.raw_types == b.raw_types && a.by_tensor_types == b.by_tensor_types &&
         a.unsupported_types == b.unsupported_types;
}

}  // namespace

TEST_CASE("what was measured comes back bit for bit, for that device alone") {
  const test::Folder folder;
  const std::string path = folder / "a/b";  // made where it is not there
  const DeviceCache cache(path);
  CHECK_FALSE(cache.find(card()));
  REQUIRE(cache.store(card(), measured()));
  REQUIRE(cache.find(card()));
  CHECK(same(*cache.find(card()), measured()));
  const auto rates = cached_rates(card(), path);
  REQUIRE(rates);
  CHECK(rates->link_bytes_per_s == 25e9);
  CHECK(rates->link_latency_s == 1.1e-5);
  CHECK(rates->flops_per_s == 4.7e13);

  DeviceInfo others[] = {card(), card(), card(), card()};
  others[0].name = "gpu1";
  others[1].description = "Another Card";
  others[2].device_id = "0000:02:00.0";
  others[3].threads = 2;
  DeviceMeasurement other = measured();
  other.to_device_pinned = 0;
  for (const DeviceInfo& info : others) {
    CHECK_FALSE(cache.find(info));
    REQUIRE(cache.store(info, other));
    CHECK(cached_rates(info, path)->link_bytes_per_s == 12e9);
    CHECK(same(*cache.find(card()), measured()));
  }
  REQUIRE(cache.store(card(), other));  // anew
  CHECK(same(*cache.find(card()), other));
  CHECK(same(*cache.find(others[0]), other));
  CHECK(std::distance(std::filesystem::directory_iterator(path), std::filesystem::directory_iterator()) == 1);
}

TEST_CASE("content that is unreadable, foreign or impossible counts as not there, and is replaced") {
  const test::Folder folder;
  const DeviceCache cache(folder / "");
  const std::string file = folder / "devices.json";
  REQUIRE(cache.store(card(), measured()));
  const auto bytes = test::slurp(file);
  const std::string good(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  const std::string bad[] = {
      "",
      "{",
      "[1, 2]",
      "null",
      std::string("\xff\xfe\0\0", 4),
      good.substr(0, good.size() / 2),
      R"({"format": 1, "devices": {}})",
      R"({"format": 1, "devices": [1, null, {"key": 3}]})",
      replaced("\"format\": 1", "\"format\": 2"),
      replaced("25000000000.0", "-25000000000.0"),
      replaced("25000000000.0", "1e300"),
      replaced("25000000000.0", "\"fast\""),
      replaced("\"f32\"", "32"),
      replaced("0.93", "1.5"),
      replaced("\"measured\"", "\"measures\""),
      std::string(2 * MiB, ' ') + good,
  };
  for (const std::string& text : bad) {
    CAPTURE(text.substr(0, 300));
    std::ofstream(file, std::ios::binary) << text;
    CHECK_FALSE(cache.find(card()));
    CHECK_FALSE(cached_rates(card(), folder / ""));
    REQUIRE(cache.store(card(), measured()));
    REQUIRE(cache.find(card()));
    CHECK(same(*cache.find(card()), measured()));
  }
}

TEST_CASE("a folder that cannot be had is an error with its path; no folder is none") {
  const test::Folder folder;
  test::spill(folder / "file", {std::byte{1}});
  const auto refused = DeviceCache(folder / "file/below").store(card(), measured());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::io);
  CHECK(refused.error().message.find("file/below") != std::string::npos);
  CHECK(DeviceCache("").store(card(), measured()));
  CHECK_FALSE(DeviceCache("").find(card()));
  CHECK(folder.entries() == 1);
}
