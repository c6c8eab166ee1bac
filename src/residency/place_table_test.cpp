#include "residency/place_table.h"

#include <doctest/doctest.h>

#include <map>
#include <random>

using namespace sluice;

TEST_CASE("PlaceTable: agrees with a list of bytes, whatever is put, given up and asked") {
  constexpr Bytes kEnd = 200;
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    PlaceTable table;
    std::map<BlockId, std::pair<Address, Bytes>> model;
    for (int step = 0; step < 60; ++step) {
      const BlockId block{static_cast<ComponentId>(rng() % 3), static_cast<std::uint32_t>(rng() % 5)};
      switch (rng() % 8) {
        case 0:
          table.erase(block);
          model.erase(block);
          break;
        default: {
          const Bytes size = 1 + rng() % 40;
          const Address address = rng() % (kEnd - size);
          table.put(block, address, size, step % 2 == 0);
          model.erase(block);
          std::erase_if(model, [&](const auto& entry) {
            const auto [at, other] = entry.second;
            return at < address + size && address < at + other;
          });
          model[block] = {address, size};
        }
      }
      const Address from = rng() % kEnd, to = from + rng() % 60;
      std::map<Address, BlockId> expected;
      for (const auto& [id, place] : model)
        if (from < to && place.first < to && from < place.first + place.second) expected[place.first] = id;
      const auto got = table.overlapping(from, to);
      REQUIRE(got.size() == expected.size());
      std::size_t i = 0;
      for (const auto& [address, id] : expected) CHECK(got[i++].block == id);
      for (ComponentId c = 0; c < 3; ++c)
        for (std::uint32_t b = 0; b < 5; ++b) {
          const auto found = table.find({c, b});
          const auto known = model.find({c, b});
          REQUIRE(found.has_value() == (known != model.end()));
          if (found) CHECK(found->at == known->second.first);
        }
    }
  }
}
