#include "cli/device_json.h"
#include "cli/device_text.h"
#include "doctest/doctest.h"

namespace sluice::cli {
namespace {

DeviceSummary card() {
  DeviceSummary d;
  d.name = "vulkan0";
  d.description = "A Card";
  d.kind = "gpu";
  d.device_id = "0000:01:00.0";
  d.total = 8 * GiB;
  d.free = 6 * GiB;
  d.alignment = 64;
  d.max_buffer = GiB;
  d.pinned = true;
  d.measured = DeviceMeasurement{4 * GiB, false, 12e9, 25e9, 11e9, 0, 1.1e-5, 4.7e12, 0.93, {"f32", "q8_0"}, {"q4_0"}, {}};
  return d;
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("device_text: numbers for people, and only what is known") {
  const auto text = device_text(card());
  for (const char* part : {"vulkan0: A Card (gpu, 0000:01:00.0)", "6.00 GiB free of 8.00 GiB\n", "4.00 GiB by asking\n",
                           "12 GB/s, 25 GB/s from pinned memory", "11 us each", "11 GB/s\n", "copies overlap compute: 0.93",
                           "4.7 TFLOP/s", "whole blocks of f32, q8_0", "tensor by tensor: q4_0", "pins host memory"})
    CHECK_MESSAGE(says(text, part), text);
  CHECK_FALSE(says(text, "not supported"));
  DeviceSummary unknown = card();
  unknown.measured.reset();
  unknown.memory_known = false;
  unknown.memory_doubt = "the driver is odd";
  const auto doubted = device_text(unknown);
  CHECK(says(doubted, "not known, give --device-budget: the driver is odd"));
  CHECK(says(doubted, "--measure"));
  CHECK_FALSE(says(doubted, "8.00 GiB"));
  CHECK(says(disk_text({"a.gguf", 64 * MiB, 1.2e9}), "a.gguf: 1.2 GB/s, 64.0 MiB read"));
  CHECK(says(disk_text({"a.gguf", 64 * MiB, 9e6}), "9 MB/s"));
}

TEST_CASE("device JSON: what is not known is null, with the reason") {
  const auto known = to_json(card());
  CHECK(known["free"] == 6 * GiB);
  CHECK(known["memory_doubt"].is_null());
  CHECK(known["measured"]["to_device_pinned"] == 25e9);
  CHECK(known["measured"]["from_device_pinned"].is_null());
  CHECK(known["measured"]["overlap"] == 0.93);
  DeviceSummary unknown = card();
  unknown.measured->overlap = -1;
  unknown.memory_known = false;
  unknown.memory_doubt = "the driver is odd";
  const auto doubted = to_json(unknown);
  CHECK(doubted["memory_known"] == false);
  CHECK(doubted["memory_doubt"] == "the driver is odd");
  CHECK(doubted["free"].is_null());
  CHECK(doubted["total"].is_null());
  CHECK(doubted["measured"]["overlap"].is_null());
  unknown.measured.reset();
  CHECK(to_json(unknown)["measured"].is_null());
}

}  // namespace sluice::cli
