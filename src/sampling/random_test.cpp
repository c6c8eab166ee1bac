#include "sampling/random.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace sluice {
namespace {

std::vector<float> draw(RandomStream& stream, std::size_t n) {
  std::vector<float> out(n);
  stream.normal(out);
  return out;
}

}  // namespace

TEST_CASE("random: every name parses back; others are refused with the list") {
  CHECK(random_kinds().size() == 2);
  for (const auto kind : random_kinds()) CHECK(parse_random(random_name(kind)).value() == kind);
  for (const std::string& bad : {std::string(), std::string("CPU"), std::string(1'000'000, 'c')}) {
    const auto parsed = parse_random(bad);
    REQUIRE(!parsed);
    CHECK(parsed.error().message.find("cpu, cuda") != std::string::npos);
    CHECK(parsed.error().message.size() < 200);
  }
}

TEST_CASE("random: a stream is a function of its seed, and its calls differ") {
  for (const auto kind : random_kinds()) {
    for (const std::size_t n : {1, 15, 16, 17, 1000}) {
      CAPTURE(random_name(kind));
      CAPTURE(n);
      const auto a = make_random_stream(kind, 42), b = make_random_stream(kind, 42), c = make_random_stream(kind, 43);
      const auto first = draw(*a, n);
      CHECK(first == draw(*b, n));
      CHECK(first != draw(*c, n));
      CHECK(first != draw(*a, n));
      CHECK(draw(*a, 0).empty());
    }
  }
}

TEST_CASE("random: the cpu stream looks at the low 32 bits of a seed, the cuda stream at all 64") {
  const auto first = [](RandomKind kind, std::uint64_t seed) { return draw(*make_random_stream(kind, seed), 32); };
  CHECK(first(RandomKind::cpu, 7) == first(RandomKind::cpu, (std::uint64_t{1} << 32) + 7));
  CHECK(first(RandomKind::cuda, 7) != first(RandomKind::cuda, (std::uint64_t{1} << 32) + 7));
}

TEST_CASE("random: a value kept from a small call survives a large one, as in torch") {
  const auto a = make_random_stream(RandomKind::cpu, 9), b = make_random_stream(RandomKind::cpu, 9);
  const auto pair = draw(*a, 2);
  CHECK(draw(*b, 1)[0] == pair[0]);
  draw(*b, 16);
  CHECK(draw(*b, 1)[0] == pair[1]);
}

TEST_CASE("random: unit normals, finite") {
  for (const auto kind : random_kinds()) {
    CAPTURE(random_name(kind));
    const auto values = draw(*make_random_stream(kind, 123), 200'003);
    double sum = 0, squares = 0;
    for (const float v : values) {
      REQUIRE(std::isfinite(v));
      sum += double{v};
      squares += double{v} * double{v};
    }
    const double n = static_cast<double>(values.size());
    CHECK(std::abs(sum / n) < 4 / std::sqrt(n));
    CHECK(std::abs(squares / n - 1) < 4 * std::sqrt(2 / n));
  }
}

TEST_CASE("image_seed: image i of a batch is the single image of seed + i, wrapping at 2^64") {
  CHECK(image_seed(7, 3) == 10);
  CHECK(image_seed(std::numeric_limits<std::uint64_t>::max(), 1) == 0);
}

}  // namespace sluice
