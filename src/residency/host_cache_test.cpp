#include "residency/host_cache.h"

#include <doctest/doctest.h>

using namespace sluice;

TEST_CASE("host cache: keeps what the ledger allows, the least recently used goes first") {
  Ledger ledger(100 * sizeof(float));
  {
    HostCache cache(ledger, 3);
    cache.put("a", std::vector<float>(40, 1.0f));
    cache.put("b", std::vector<float>(40, 2.0f));
    REQUIRE(cache.find("a"));  // now used later than b
    cache.put("c", std::vector<float>(40, 3.0f));
    CHECK_FALSE(cache.find("b"));
    REQUIRE(cache.find("a"));
    CHECK(*cache.find("a") == std::vector<float>(40, 1.0f));
    CHECK(cache.bytes() == 80 * sizeof(float));
    CHECK(ledger.report().total == 80 * sizeof(float));
    cache.put("too large", std::vector<float>(101));
    CHECK(cache.entries() == 0);
    CHECK(ledger.report().total == 0);
    for (const char* name : {"1", "2", "3", "4"}) cache.put(name, {1.0f});
    CHECK(cache.entries() == 3);
    CHECK_FALSE(cache.find("1"));
    cache.put("4", {5.0f});
    CHECK(cache.entries() == 3);
    CHECK(cache.find("4")->at(0) == 5.0f);
    CHECK(cache.drop());
    CHECK_FALSE(cache.drop());
    cache.put("x", {1.0f});
  }
  CHECK(ledger.report().total == 0);
}
