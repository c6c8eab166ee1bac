#include "residency/weight_store.h"

#include <doctest/doctest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "io/faulty_files.h"
#include "residency/test_device.h"
#include "residency/test_model.h"

using namespace sluice;

TEST_CASE("layout: planned bytes are those of the device type, for every dtype; offsets are aligned") {
  const TestFolder folder;
  constexpr std::pair<DType, Bytes> kWidths[] = {{DType::f64, 4},  {DType::f32, 4},     {DType::f16, 2},
                                                 {DType::bf16, 2}, {DType::f8_e4m3, 2}, {DType::f8_e5m2, 2}};
  std::vector<TestTensor> tensors;
  for (const auto& [dtype, width] : kWidths) {
    tensors.push_back(random_tensor(std::string(dtype_name(dtype)), dtype, {50, 9}, 1));
    tensors.push_back(random_tensor(std::string(dtype_name(dtype)) + ".bias", dtype, {9}, 2));
  }
  write_test_file(folder.file("t.safetensors"), tensors);
  const auto file = open_test_file(folder.file("t.safetensors"), *system_files());
  Fixture model;
  for (const auto& [dtype, width] : kWidths) {
    model.block();
    model.weight(file, std::string(dtype_name(dtype)), WeightRole::matrix);
    model.weight(file, std::string(dtype_name(dtype)) + ".bias", WeightRole::vector);
  }
  for (Bytes alignment : {Bytes{32}, Bytes{64}, Bytes{512}}) {
    TestDevice device;
    device.info_.alignment = alignment;
    WeightStore store(device, {.tier = HostTier::read});
    const ComponentId id = must_add(store, model.spec());
    Bytes sum = 0;
    for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b) {
      CAPTURE(dtype_name(kWidths[b].first));
      const BlockLayout& layout = store.layout({id, b});
      CHECK(layout.tensors[0].size == 50 * 9 * kWidths[b].second);
      CHECK(layout.tensors[1].offset == align_up(layout.tensors[0].size, alignment));
      CHECK(layout.size == layout.tensors[1].offset + align_up(36, alignment));
      CHECK(layout.raw);
      sum += layout.size;
    }
    CHECK(store.weight_bytes(id) == sum);
    CHECK(store.host_ledger().report().by_use[static_cast<std::size_t>(Use::images)] == sum);
  }
  TestDevice device;
  device.no_raw = GGML_TYPE_BF16;
  WeightStore store(device, {});
  const ComponentId id = must_add(store, model.spec());
  for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b)
    CHECK(store.layout({id, b}).raw == (kWidths[b].first != DType::bf16));
}

TEST_CASE("tied weights: one place within a block, counted once in the file's bytes") {
  const TestFolder folder;
  write_test_file(folder.file("t.safetensors"), {random_tensor("t", DType::f16, {64, 10}, 1)});
  const auto file = open_test_file(folder.file("t.safetensors"), *system_files());
  Fixture model;
  model.block();
  model.weight(file, "t", WeightRole::matrix);
  model.weight(file, "t", WeightRole::matrix);
  model.weight(file, "t", WeightRole::dense);
  model.block();
  model.weight(file, "t", WeightRole::matrix);
  TestDevice device;
  WeightStore store(device, {.tier = HostTier::disk});
  const ComponentId id = must_add(store, model.spec());
  const BlockLayout& layout = store.layout({id, 0});
  CHECK(layout.tensors[0].offset == layout.tensors[1].offset);
  CHECK(layout.size == 64 * 10 * 2 + 64 * 10 * 4);
  CHECK(store.file_bytes(id) == 2 * 64 * 10 * 2);  // once as f16, once widened
  auto staging = staging_for(store, id, model.model);
  REQUIRE(store.fetch({id, 0}, staging, CancelToken()));
  CHECK(equal(std::span(staging).first(layout.size), expected_image(model, 0, layout)));
  CHECK(store.counters().bytes_read == 2 * 64 * 10 * 2);
}

TEST_CASE("add: one error for all that does not fit, and nothing is left of a failed one") {
  const TestFolder folder;
  std::vector<TestTensor> tensors = {random_tensor("ids", DType::i64, {4}, 1)};
  for (int i = 0; i < 6; ++i) tensors.push_back(random_tensor("w" + std::to_string(i), DType::f16, {8, 4}, 2));
  write_test_file(folder.file("t.safetensors"), tensors);
  const auto file = open_test_file(folder.file("t.safetensors"), *system_files());
  Fixture good, bad;
  good.block();
  good.weight(file, "w0", WeightRole::matrix);
  bad.block();
  for (int i = 0; i < 6; ++i) bad.weight(file, "w" + std::to_string(i), WeightRole::matrix, {4, 8});
  bad.block();
  bad.weight(file, "ids", WeightRole::vector);
  for (HostTier tier : kTiers) {
    TestDevice device;
    WeightStore store(device, {.tier = tier});
    const ComponentId id = must_add(store, good.spec("good"));
    const auto before = store.host_ledger().report();
    auto refused = store.add(bad.spec("bad"));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::invalid_argument);
    CHECK(
        refused.error().message ==
        "bad: 7 weights do not fit " + folder.file("t.safetensors") +
            ": w0: got f16 [8, 4], expected [4, 8]; w1: got f16 [8, 4], expected [4, 8]; w2: got f16 [8, 4], expected [4, 8]; "
            "w3: got f16 [8, 4], expected [4, 8]; w4: got f16 [8, 4], expected [4, 8]; and 2 more");
    CHECK(store.components() == 1);
    CHECK(store.host_ledger().report().by_use == before.by_use);
    CHECK(device.ledger().report().total == 0);
    CHECK(store.add(good.spec("good")).error().code == Code::invalid_argument);
    ComponentSpec short_of_sources = bad.spec("short");
    short_of_sources.sources[0].pop_back();
    CHECK(store.add(short_of_sources).error().code == Code::invalid_argument);
    short_of_sources.sources.pop_back();
    CHECK(store.add(short_of_sources).error().code == Code::invalid_argument);
    CHECK(store.add({"none", nullptr, {}}).error().code == Code::invalid_argument);
    Fixture ids;
    ids.block();
    ids.weight(file, "ids", WeightRole::vector);
    CHECK(store.add(ids.spec("ids")).error().code == Code::unsupported);
    CHECK(store.host_ledger().report().by_use == before.by_use);
    auto staging = staging_for(store, id, good.model);
    const auto image = store.fetch({id, 0}, staging, CancelToken());
    REQUIRE(image);
    CHECK(equal(*image, expected_image(good, 0, store.layout({id, 0}))));
  }
}

TEST_CASE("add: a mapping that fails, and a host budget below the conversion buffer, are errors that leave nothing") {
  const FaultyFiles files(system_files(), {.fail_map = 2});
  const Everything model(files);
  TestDevice device;
  WeightStore store(device, {.tier = HostTier::mapped});
  const auto refused = store.add(model.spec());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::io);
  CHECK(store.components() == 0);
  const ComponentId id = must_add(store, model.spec());
  auto staging = staging_for(store, id, model.model);
  CHECK(store.fetch({id, 0}, staging, CancelToken()));

  WeightStore poor(device, {.tier = HostTier::disk, .host_budget = 1000});
  const auto too_much = poor.add(model.spec());
  REQUIRE_FALSE(too_much);
  CHECK(too_much.error().code == Code::over_budget);
  CHECK(poor.host_ledger().report().peak == 0);
  WeightStore enough(device, {.tier = HostTier::disk, .host_budget = too_much.error().needed});
  CHECK(enough.add(model.spec()));
}

TEST_CASE("remove: refused while held or while a block is fetched, else complete") {
  for (HostTier tier : kTiers) {
    Everything model;
    TestDevice device;
    std::function<void()> before_read;
    hook(model, [&] {
      if (before_read) before_read();
    });
    WeightStore store(device, {.tier = tier});
    const ComponentId id = must_add(store, model.spec());
    const Fixture other{model.model, model.sources};
    const ComponentId second = must_add(store, other.spec("second"));
    auto staging = staging_for(store, id, model.model);
    bool refused_inside = false;
    before_read = [&] {
      const auto status = store.remove(id);
      refused_inside = !status && status.error().code == Code::invalid_argument;
    };
    REQUIRE(store.fetch({id, 0}, staging, CancelToken()));
    before_read = nullptr;
    CHECK(refused_inside == (tier != HostTier::mapped));
    {
      const WeightStore::Hold hold = store.hold(id);
      const auto status = store.remove(id);
      REQUIRE_FALSE(status);
      CHECK(status.error().code == Code::invalid_argument);
      CHECK(store.components() == 2);
    }
    REQUIRE(store.remove(id));
    CHECK(store.components() == 1);
    CHECK(store.counters().images_kept == 0);
    const auto image = store.fetch({second, 3}, staging, CancelToken());
    REQUIRE(image);
    CHECK(equal(*image, expected_image(model, 3, store.layout({second, 3}))));
    REQUIRE(store.remove(second));
    CHECK(store.host_ledger().report().by_use[static_cast<std::size_t>(Use::images)] == 0);
    CHECK(must_add(store, model.spec()) != id);
  }
}

TEST_CASE("check_sources: a file that changed is told before it is used") {
  const TestFolder folder;
  const auto path = folder.file("t.safetensors");
  write_test_file(path, {random_tensor("t", DType::f32, {8, 8}, 1)});
  Fixture model;
  model.block();
  const auto file = open_test_file(path, *system_files());
  model.weight(file, "t", WeightRole::matrix);
  TestDevice device;
  WeightStore store(device, {});
  must_add(store, model.spec());
  CHECK(store.check_sources());
  std::ofstream(path, std::ios::app) << "more";
  const auto changed = store.check_sources();
  REQUIRE_FALSE(changed);
  CHECK(changed.error().code == Code::io);
  CHECK(store.add(model.spec("late")).error().code == Code::io);
}

TEST_CASE("threads: fetching beside registration, and two components at once") {
  const Everything model;
  for (HostTier tier : kTiers) {
    TestDevice device;
    WeightStore store(device, {.tier = tier});
    const ComponentId ids[] = {must_add(store, model.spec("first")), must_add(store, model.spec("second"))};
    std::vector<std::thread> threads;
    std::atomic<int> right{0};
    for (ComponentId id : ids)
      threads.emplace_back([&, id] {
        std::vector<std::byte> staging(8 * MiB);
        for (int round = 0; round < 2; ++round)
          for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b)
            if (auto image = store.fetch({id, b}, staging, CancelToken()); image && image->size() == store.layout({id, b}).size)
              ++right;
      });
    std::vector<ComponentId> late;
    for (int i = 0; i < 5; ++i)
      if (auto id = store.add(model.spec("late" + std::to_string(i)))) late.push_back(*id);
    for (auto& t : threads) t.join();
    CHECK(right == 2 * 2 * 5);
    CHECK(late.size() == 5);
    auto staging = staging_for(store, late[4], model.model);
    for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b) {
      const auto image = store.fetch({ids[1], b}, staging, CancelToken());
      REQUIRE(image);
      CHECK(equal(*image, expected_image(model, b, store.layout({ids[1], b}))));
    }
  }
}
