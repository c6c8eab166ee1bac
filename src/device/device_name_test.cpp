#include "device/device_name.h"

#include <doctest/doctest.h>

using namespace sluice;

TEST_CASE("parse_device_name: splits, and names what it cannot read") {
  const auto name = parse_device_name("sim:memory=24MiB,poison=1");
  REQUIRE(name);
  CHECK(name->base == "sim");
  REQUIRE(name->options.size() == 2);
  CHECK(name->options[1] == std::pair<std::string, std::string>{"poison", "1"});
  CHECK(parse_device_name("cpu")->options.empty());
  CHECK(parse_device_name("cpu:")->options.empty());
  CHECK(parse_device_name("x:a=b=c")->options[0].second == "b=c");
  for (const char* bad : {"", ":a=1", "x:a", "x:=1", "x:a=1,a=2", "x:,a=1"}) {
    CAPTURE(bad);
    const auto refused = parse_device_name(bad);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::invalid_argument);
  }
}

TEST_CASE("simulated devices have labels, other devices have none") {
  const auto name = parse_device_name("sim:a,memory=24MiB");
  REQUIRE(name);
  CHECK(name->label == "a");
  CHECK(name->plain() == "sim:a");
  CHECK(name->options.size() == 1);
  CHECK(parse_device_name("sim:b")->plain() == "sim:b");
  CHECK(parse_device_name("sim:memory=1MiB")->plain() == "sim");
  CHECK_FALSE(parse_device_name("sim:memory=1MiB,a"));
  CHECK_FALSE(parse_device_name("cpu:a"));
}

TEST_CASE("split_device_list: a comma starts a device or goes on with one's options") {
  using List = std::vector<std::string>;
  CHECK(split_device_list("cpu").value() == List{"cpu"});
  CHECK(split_device_list("vulkan0,cpu").value() == List{"vulkan0", "cpu"});
  CHECK(split_device_list("sim:a,memory=1MiB,poison=1,sim:b,memory=2MiB,cpu:threads=2").value() ==
        List{"sim:a,memory=1MiB,poison=1", "sim:b,memory=2MiB", "cpu:threads=2"});
  CHECK(split_device_list("sim:memory=1MiB,cpu").value() == List{"sim:memory=1MiB", "cpu"});
  CHECK(split_device_list("cpu,threads=2").value() == List{"cpu:threads=2"});
  for (const char* bad : {"", ",cpu", "cpu,", "cpu,,sim", "memory=1MiB"}) {
    CAPTURE(bad);
    CHECK_FALSE(split_device_list(bad));
  }
}

TEST_CASE("rates, durations and counts: units are required and ranges kept") {
  CHECK(parse_link_rate("200MB/s").value() == 200e6);
  CHECK(parse_link_rate("1GiB/s").value() == 1024.0 * 1024 * 1024);
  CHECK(parse_flops("50GFLOPS").value() == 50e9);
  CHECK(parse_flops("1.5TFLOPS").value() == 1.5e12);
  CHECK(parse_duration("20us").value() == doctest::Approx(20e-6).epsilon(1e-12));
  CHECK(parse_duration("0s").value() == 0);
  CHECK(parse_count("7", 1, 7).value() == 7);
  for (const char* bad : {"200MB", "0MB/s", "/s", "fast", "-1MB/s", ""}) CHECK_FALSE(parse_link_rate(bad));
  for (const char* bad : {"50", "0GFLOPS", "nanGFLOPS", "infFLOPS", "1e400FLOPS", "GFLOPS", ""}) CHECK_FALSE(parse_flops(bad));
  for (const char* bad : {"20", "-1us", "2000s", "1h", ""}) CHECK_FALSE(parse_duration(bad));
  for (const char* bad : {"0", "8", "-1", "1x", "", "99999999999999999999"}) CHECK_FALSE(parse_count(bad, 1, 7));
}
