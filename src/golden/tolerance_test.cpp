#include "golden/tolerance.h"

#include <doctest/doctest.h>

#include "golden/runner.h"

using namespace sluice::golden;

TEST_CASE("Setup: of several devices the one that rounds most says what is allowed") {
  const auto backend = [](const char* device) {
    Setup setup;
    setup.device = device;
    return setup.backend();
  };
  CHECK(backend("cpu") == "cpu");
  CHECK(backend("cpu:threads=1") == "cpu");
  CHECK(backend("sim:memory=24MiB,link=200MB/s") == "sim");
  CHECK(backend("sim:threads=1,memory=24MiB,sim:threads=1") == "sim");
  CHECK(backend("vulkan0") == "vulkan0");
  CHECK(backend("sim:threads=1,memory=8MiB,vulkan0") == "vulkan0");
  CHECK(backend("vulkan0,cpu:threads=1,poll=0") == "vulkan0");
}

TEST_CASE("tolerance: f32 is judged strictly where products are exact, as f16 where factors are rounded") {
  CHECK(tolerance(Work::network, "f32", "cpu").rel_rms == 1e-4);
  CHECK(tolerance(Work::network, "f32", "sim").rel_rms == 1e-4);
  CHECK(tolerance(Work::network, "f32", "vulkan0").rel_rms == tolerance(Work::network, "f16", "cpu").rel_rms);
  CHECK(tolerance(Work::pipeline, "f32", "vulkan0").max_abs_over_rms ==
        tolerance(Work::pipeline, "f16", "cpu").max_abs_over_rms);
  CHECK(tolerance(Work::loading, "f32", "vulkan0").max_abs == 0);
}
