#include "residency/host_images.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

using namespace sluice;

TEST_CASE("choose_kept: all if they fit, else what fits beside staging for the largest image") {
  for (unsigned seed = 0; seed < 1000; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    std::vector<Bytes> sizes(1 + rng() % 20);
    for (Bytes& size : sizes) size = rng() % 100;
    const Bytes sum = std::accumulate(sizes.begin(), sizes.end(), Bytes{0}),
                largest = *std::max_element(sizes.begin(), sizes.end());
    const Bytes room = rng() % (sum + 50);
    const auto kept = choose_kept(sizes, room);
    Bytes used = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i)
      if (kept[i]) used += sizes[i];
    if (sum <= room) {
      CHECK(used == sum);
      continue;
    }
    CHECK((used == 0 || used + largest <= room));
    for (std::size_t i = 0; i < sizes.size(); ++i)
      if (!kept[i] && sizes[i] > 0) CHECK(used + sizes[i] + largest > room);
    CHECK(choose_kept(sizes, std::nullopt) == choose_kept(sizes, sum));
  }
}
