#include "pipeline/settings.h"

#include <doctest/doctest.h>

#include <climits>
#include <limits>

using namespace sluice;

namespace {

Request sized(int width, int height) {
  Request r;
  r.width = width;
  r.height = height;
  r.seed = 1;
  return r;
}

void refused(const Request& request, const char* says) {
  const auto settings = check_request(request, {});
  REQUIRE_FALSE(settings);
  CHECK(settings.error().code == Code::invalid_argument);
  CHECK_MESSAGE(settings.error().message.find(says) != std::string::npos, settings.error().message);
}

}  // namespace

// A picture size that is no multiple ends in an assertion deep in the graph.
TEST_CASE("sizes: multiples give exactly that size, all others are refused with the nearest valid sizes") {
  for (const int multiple : {1, 2, 8}) {
    PictureRule rule;
    rule.latent_multiple = multiple;
    const int m = rule.multiple();
    for (int size = 1; size <= 1030; ++size) {
      CAPTURE(size);
      CAPTURE(m);
      const auto wide = check_request(sized(size, m), rule), high = check_request(sized(m, size), rule);
      CHECK(wide.has_value() == (size % m == 0));
      CHECK(high.has_value() == (size % m == 0));
      if (wide) {
        CHECK(wide->request.width == size);
        CHECK(wide->latent_width * rule.factor == size);
        CHECK(high->request.height == size);
      } else if (size > m) {
        CHECK(wide.error().message.find("width") != std::string::npos);
        CHECK(high.error().message.find("height") != std::string::npos);
        const std::string nearest = std::to_string(size / m * m) + " or " + std::to_string(size / m * m + m);
        CHECK_MESSAGE(wide.error().message.find(nearest) != std::string::npos, wide.error().message);
      }
    }
  }
}

TEST_CASE("sizes: 0 is the native one; negative, huge and extreme numbers are refused with what is accepted") {
  const auto native = check_request(sized(0, 0), {});
  REQUIRE(native);
  CHECK(native->request.width == 512);
  CHECK(native->request.height == 512);
  for (const int bad : {-1, -64, 1'000'000, 16384 + 64, INT_MAX, INT_MIN}) {
    CAPTURE(bad);
    refused(sized(bad, 64), "from 64 to 16384");
    refused(sized(64, bad), "from 64 to 16384");
  }
  CHECK(check_request(sized(kLargestSide, 64), {}));
}

TEST_CASE("numbers out of range are refused with the range") {
  Request r = sized(64, 64);
  for (const int bad : {0, -1, 1001, INT_MIN}) {
    r.steps = bad;
    refused(r, "1 to 1000");
  }
  r = sized(64, 64);
  for (const int bad : {0, -1, kLargestBatch + 1, INT_MAX}) {
    r.batch = bad;
    refused(r, "1 to 64");
  }
  r = sized(64, 64);
  for (const int bad : {0, 3, -1}) {
    r.clip_skip = bad;
    refused(r, "1 (last layer) or 2");
  }
  r = sized(64, 64);
  r.seed = -2;
  refused(r, "0 or more");
}

// Guidance of 1 and 0 take one pass, between them two; what is no number is refused.
TEST_CASE("guidance: passes by scale") {
  Request r = sized(64, 64);
  for (const float scale : {0.0f, 1.0f, 0.5f, 7.0f, 1e6f}) {
    CAPTURE(scale);
    r.cfg_scale = scale;
    const auto settings = check_request(r, {});
    REQUIRE(settings);
    CHECK(settings->passes.cond == (scale != 0));
    CHECK(settings->passes.uncond == (scale != 1));
  }
  using Limits = std::numeric_limits<float>;
  for (const float bad : {-0.5f, -7.0f, Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
    r.cfg_scale = bad;
    refused(r, "guidance scale");
  }
}

// An unknown or missing name ends in a null pointer.
TEST_CASE("names: every known one is accepted, unknown, empty and very long ones are refused with the valid names") {
  const auto each = [&](std::string Request::* field, std::initializer_list<const char*> valid) {
    Request r = sized(64, 64);
    for (const char* name : valid) {
      r.*field = name;
      CHECK(check_request(r, {}));
    }
    for (const std::string& bad : {std::string(), std::string("no such"), std::string(100'000, 'x')}) {
      r.*field = bad;
      const auto settings = check_request(r, {});
      REQUIRE_FALSE(settings);
      CHECK(settings.error().code == Code::invalid_argument);
      for (const char* name : valid) CHECK(settings.error().message.find(name) != std::string::npos);
      CHECK(settings.error().message.size() < 300);
    }
  };
  each(&Request::sampler, {"euler", "euler_a", "ddim", "dpmpp_2m"});
  each(&Request::schedule, {"discrete", "leading", "karras"});
  each(&Request::rng, {"cuda", "cpu"});
  each(&Request::emphasis, {"mean", "none"});
}

TEST_CASE("seed: -1 becomes one that is stated, others stay") {
  Request r = sized(64, 64);
  r.seed = -1;
  const auto first = check_request(r, {}), second = check_request(r, {});
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->request.seed >= 0);
  CHECK(first->request.seed <= INT_MAX);
  CHECK(first->request.seed != second->request.seed);
  r.seed = std::numeric_limits<std::int64_t>::max();
  CHECK(check_request(r, {})->request.seed == r.seed);
}
