// Thread counts: a device's count is fixed for the engine's life; this states which results depend on it.
#include <doctest/doctest.h>

#include "support/rig.h"

using namespace sluice;
using namespace sluice::test;

// On ggml's CPU backend every operator that the models here use splits its rows (or elements) over the threads and leaves each
// sum to one of them: products, convolutions through im2col, softmax, group norm, layer norm and all elementwise operators give
// the same bits for 1, 2 and 3 threads.
TEST_CASE("one, two and three threads: the same latents and pixels, bit for bit") {
  const Request request = small_request();
  std::optional<Drawn> want;
#ifdef SLUICE_SANITIZED
  const std::vector<int> counts{1, 2};  // spinning threads under a sanitizer on two cores take minutes
#else
  const std::vector<int> counts{1, 2, 3};
#endif
  for (const int threads : counts) {
    CAPTURE(threads);
    RigOptions options;
    options.sim.threads = threads;
    auto rig = Rig::open(options);
    REQUIRE(rig);
    auto drawn = (*rig)->draw(request);
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    if (!want) {
      want = std::move(*drawn);
      continue;
    }
    CHECK(drawn->latents == want->latents);
    CHECK(drawn->pixels == want->pixels);
  }
}
