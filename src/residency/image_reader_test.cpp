#include "residency/image_reader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

#include "io/memory_file.h"
#include "residency/test_device.h"

using namespace sluice;

TEST_CASE("plan_reads: every weight once, neighbours together, nothing larger than asked") {
  TestDevice device;
  const auto bytes = memory_file("a", {});
  for (unsigned seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    auto file = std::make_shared<TensorFile>();
    file->file = bytes;
    Bytes offset = rng() % 100;
    const std::size_t count = 1 + rng() % 12;
    for (std::size_t i = 0; i < count; ++i) {
      TensorInfo info;
      info.dtype = DType::f16;
      info.ggml = GGML_TYPE_F16;
      info.shape = {static_cast<std::int64_t>(1 + rng() % 300)};
      info.offset = offset;
      info.size = static_cast<Bytes>(info.shape[0]) * 2;
      offset += info.size + (rng() % 3 == 0 ? rng() % 200 : 0);
      file->tensors.push_back(info);
    }
    // Declared in another order than the file's, some twice, some not at all.
    Block block;
    std::vector<WeightRecipe> recipes;
    for (std::size_t i = 0; i < count + 2; ++i) {
      const std::size_t t = rng() % count;
      block.weights.push_back({"w", file->tensors[t].shape, WeightRole::matrix});
      auto recipe = resolve_weight(block.weights.back(), {file, t});
      REQUIRE(recipe);
      recipes.push_back(*recipe);
    }
    const auto layout = lay_out_block(block, recipes, device);
    const Bytes most = 1 + rng() % 2000;
    std::set<Bytes> starts;
    Bytes end = 0;
    for (const ReadRun& run : plan_reads(recipes, layout, most)) {
      CHECK(run.begin >= end);  // no byte twice
      CHECK((run.weights.size() == 1 || run.end - run.begin <= most));
      // What follows closely, with padding alone between, and would have fitted was taken along.
      const bool others_between = std::any_of(file->tensors.begin(), file->tensors.end(), [&](const TensorInfo& t) {
        return t.offset < run.begin && t.offset + t.size > end;
      });
      if (end > 0 && run.begin - end < 64 && !others_between)
        CHECK(recipes[run.weights.front()].end() - *starts.rbegin() > most);
      end = run.end;
      Bytes reached = run.begin;
      for (std::size_t w : run.weights) {
        CHECK(recipes[w].begin >= reached);
        CHECK(recipes[w].begin - reached < 64);
        // Bytes of a tensor that is not this run's are left to those who want it.
        CHECK(std::none_of(file->tensors.begin(), file->tensors.end(),
                           [&](const TensorInfo& t) { return t.offset < recipes[w].begin && t.offset + t.size > reached; }));
        reached = recipes[w].end();
      }
      CHECK(reached == run.end);
      starts.insert(run.begin);
    }
    for (const auto& recipe : recipes) {
      const auto runs = plan_reads(recipes, layout, most);
      CHECK(std::count_if(runs.begin(), runs.end(),
                          [&](const ReadRun& r) { return r.begin <= recipe.begin && recipe.end() <= r.end; }) == 1);
    }
  }
}
