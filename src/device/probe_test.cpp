#include "device/probe.h"

#include <doctest/doctest.h>

#include "device/device.h"

using namespace sluice;

TEST_CASE("raw images: every weight type may be streamed to the CPU and to the simulated device") {
  for (const char* name : {"cpu:threads=1", "cpu:threads=2", "sim:threads=2"}) {
    CAPTURE(name);
    auto device = open_device(name);
    REQUIRE(device);
    const Bytes before = (*device)->ledger().report().total;
    for (const ggml_type type : kWeightTypes) {
      CAPTURE(ggml_type_name(type));
      CHECK((*device)->raw_images(type));
      CHECK((*device)->raw_images(type));
    }
    CHECK((*device)->ledger().report().total == before);
    CHECK((*device)->live_buffers() == 0);
  }
}

TEST_CASE("raw images: integers are no weights of a product") {
  auto device = open_device("cpu:threads=1");
  REQUIRE(device);
  CHECK_FALSE((*device)->raw_images(GGML_TYPE_I32));
}

TEST_CASE("raw images: no answer is stored while the ledger has no room to find out") {
  auto device = open_device("cpu:threads=1");
  REQUIRE(device);
  Ledger& ledger = (*device)->ledger();
  ledger.set_limit(kProbeBytes - 1);
  CHECK_FALSE((*device)->raw_images(GGML_TYPE_F32));
  ledger.set_limit(std::nullopt);
  CHECK((*device)->raw_images(GGML_TYPE_F32));
}
