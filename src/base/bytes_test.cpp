#include "base/bytes.h"

#include <doctest/doctest.h>

#include <limits>

using namespace sluice;

TEST_CASE("parse_bytes: binary and decimal units, fractions, plain numbers") {
  CHECK(parse_bytes("6GiB").value() == 6 * GiB);
  CHECK(parse_bytes("1.5MiB").value() == 1536 * KiB);
  CHECK(parse_bytes("200MB").value() == 200'000'000);
  CHECK(parse_bytes("4096").value() == 4096);
  CHECK(parse_bytes("24 MiB").value() == 24 * MiB);
}

TEST_CASE("parse_bytes: anything else is an error that shows the form") {
  for (const char* text : {"", "GiB", ".", "-1GiB", "6 gigs", "1e9", "99999999999999999999", "20000000000TiB", "1.5.2MiB"}) {
    CAPTURE(text);
    const auto r = parse_bytes(text);
    REQUIRE_FALSE(r);
    CHECK(r.error().code == Code::invalid_argument);
    CHECK(r.error().message.find("6GiB") != std::string::npos);
  }
}

TEST_CASE("checked arithmetic: overflow is seen, the rest is exact") {
  Bytes out = 0;
  const Bytes top = std::numeric_limits<Bytes>::max();
  CHECK(checked_add(top, 0, out));
  CHECK_FALSE(checked_add(top, 1, out));
  CHECK(checked_mul(1ull << 32, 1ull << 31, out));
  CHECK(out == 1ull << 63);
  CHECK_FALSE(checked_mul(1ull << 32, 1ull << 32, out));
}
