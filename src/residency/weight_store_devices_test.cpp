// Components that move from device to device.
#include <doctest/doctest.h>

#include "residency/test_device.h"
#include "residency/test_model.h"

using namespace sluice;

TEST_CASE("place: layouts are the new device's, kept images stay where they are the same, and bits are right") {
  const Everything model;
  TestDevice first, alike, coarse;
  coarse.info_.alignment = 4096;
  for (const bool loaded : {false, true}) {
    for (HostTier tier : kTiers) {
      WeightStore store({&first, &alike, &coarse}, {.tier = tier});
      const ComponentId id = must_add(store, model.spec());
      CHECK(store.device_of(id) == 0);
      if (loaded) check_images(store, model, id);
      const auto read = store.counters();
      REQUIRE(store.place(id, 1));
      CHECK(store.device_of(id) == 1);
      CHECK(store.counters().images_kept == read.images_kept);
      check_images(store, model, id);
      if (tier == HostTier::read) CHECK(store.counters().bytes_read == store.file_bytes(id));
      REQUIRE(store.place(id, 2));
      WeightStore there(coarse, {.tier = tier});
      const ComponentId same = must_add(there, model.spec());
      for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b) {
        CHECK(store.layout({id, b}).size == there.layout({same, b}).size);
        CHECK(store.mappable({id, b}) == there.mappable({same, b}));
        CHECK(store.needs_staging({id, b}) == there.needs_staging({same, b}));
      }
      CHECK(store.weight_bytes(id) == there.weight_bytes(same));
      check_images(store, model, id);
      check_images(there, model, same);
      CHECK(store.counters().images_kept == there.counters().images_kept);
      CHECK(store.host_ledger().report().by_use == there.host_ledger().report().by_use);
      REQUIRE(store.remove(id));
    }
  }
}

TEST_CASE("place: in-place use follows the device") {
  const TestFolder folder;
  write_test_file(folder.file("t"), {random_tensor("a", DType::f16, {64, 32}, 1)}, 64);
  Fixture model;
  model.block();
  model.weight(open_test_file(folder.file("t"), *system_files()), "a", WeightRole::matrix);
  TestDevice cpu, card;
  card.info_.kind = DeviceKind::gpu;
  card.info_.host_memory = false;
  WeightStore store({&cpu, &card}, {.tier = HostTier::mapped});
  auto spec = model.spec();
  spec.devices = {1};
  const ComponentId id = must_add(store, spec);
  CHECK(store.device_of(id) == 1);
  CHECK_FALSE(store.mappable({id, 0}));
  REQUIRE(store.place(id, 0));
  CHECK(store.mappable({id, 0}));
  REQUIRE(store.place(id, 1));
  CHECK_FALSE(store.mappable({id, 0}));
  spec.name = "beyond";
  spec.devices = {2};
  CHECK(store.add(spec).error().code == Code::invalid_argument);
}

TEST_CASE("place: refused while held, while a block is fetched or flagged, and for no device; nothing changes then") {
  Everything model;
  std::function<void()> before_read;
  hook(model, [&] {
    if (before_read) before_read();
  });
  TestDevice first, coarse;
  coarse.info_.alignment = 4096;
  WeightStore store({&first, &coarse}, {.tier = HostTier::read});
  const ComponentId id = must_add(store, model.spec());
  const Bytes bytes = store.weight_bytes(id);
  const auto refused = [&] {
    const auto books = store.host_ledger().report().by_use;
    const auto status = store.place(id, 1);
    const bool same =
        store.device_of(id) == 0 && store.weight_bytes(id) == bytes && store.host_ledger().report().by_use == books;
    return !status && status.error().code == Code::invalid_argument && same;
  };
  CHECK(store.place(id, 2).error().code == Code::invalid_argument);
  {
    const auto hold = store.hold(id);
    CHECK(refused());
  }
  {
    const auto hold = store.hold(BlockId{id, 1});
    CHECK(refused());
  }
  int inside = 0;
  before_read = [&] { inside += refused() ? 1 : -1000; };
  REQUIRE(store.fetch({id, 1}, {}, CancelToken()));
  before_read = nullptr;
  CHECK(inside > 0);
  for (const BlockFlag flag : {BlockFlag::merged, BlockFlag::row_split}) {
    store.set_flag({id, 4}, flag);
    CHECK(refused());
    store.set_flag({id, 4}, flag, false);
  }
  REQUIRE(store.place(id, 1));
  CHECK(store.weight_bytes(id) > bytes);
  check_images(store, model, id);
}

TEST_CASE("place: larger images that the host budget does not take are read at each use") {
  const Everything model;
  TestDevice first, coarse;
  coarse.info_.alignment = 64 * KiB;
  Bytes needed = 0;
  {
    WeightStore store(first, {.tier = HostTier::read});
    const ComponentId id = must_add(store, model.spec());
    needed = store.host_ledger().report().total;
    check_images(store, model, id);
  }
  WeightStore store({&first, &coarse}, {.tier = HostTier::read, .host_budget = needed});
  const ComponentId id = must_add(store, model.spec());
  check_images(store, model, id);
  REQUIRE(store.place(id, 1));
  const auto hold = store.hold(id);
  bool staged = false;
  for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b) staged = staged || store.needs_staging({id, b});
  CHECK(staged);
  check_images(store, model, id);
  CHECK(store.host_ledger().report().peak <= needed);
}
