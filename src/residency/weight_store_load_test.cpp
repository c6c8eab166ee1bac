// Loading ahead of the first use: all or nothing, each byte once.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "residency/test_device.h"
#include "residency/test_model.h"

using namespace sluice;

namespace {

/// Bytes of the files' tensors that any weight uses, each once.
Bytes distinct_bytes(const Fixture& fixture) {
  std::map<const TensorFile*, std::vector<bool>> used;
  for (const auto& block : fixture.sources)
    for (const auto& source : block) {
      const auto range = source_range(source);
      REQUIRE(range);
      auto& bytes = used[source.file.get()];
      bytes.resize(source.file->file->size());
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(range->begin), range->bytes, true);
    }
  Bytes sum = 0;
  for (const auto& [file, bytes] : used) sum += static_cast<Bytes>(std::count(bytes.begin(), bytes.end(), true));
  return sum;
}

/// Weights that share their bytes within blocks and between them, in one type and in several; tiny tensors of one block
/// between those of another.
struct Tied : Fixture {
  TestFolder folder;
  Tied() {
    write_test_file(folder.file("t.safetensors"),
                    {random_tensor("a", DType::f16, {64, 10}, 1), random_tensor("tiny", DType::f32, {3}, 2),
                     random_tensor("b", DType::f32, {64, 7}, 3), random_tensor("c", DType::bf16, {32, 5}, 4)});
    const auto file = open_test_file(folder.file("t.safetensors"), *system_files());
    block();
    weight(file, "c", WeightRole::kernel);  // f32 from bf16: a later block has the file's own bytes
    block();
    weight(file, "a", WeightRole::dense);  // f32 from f16
    weight(file, "a", WeightRole::matrix);
    weight(file, "a", WeightRole::matrix, {10, 64, 1}, 0, -1);
    model.blocks.back().weights.back().shape = {64, 10};
    block();
    weight(file, "tiny", WeightRole::vector);
    block();
    weight(file, "a", WeightRole::matrix);
    weight(file, "b", WeightRole::matrix);
    weight(file, "b", WeightRole::dense);
    weight(file, "c", WeightRole::matrix);
    block();
    weight(file, "c", WeightRole::kernel);  // f32 from bf16
    weight(file, "a", WeightRole::dense);
    weight(file, "b", WeightRole::matrix);
  }
};

}  // namespace

TEST_CASE("load: each byte of a file is read once, and the images are right") {
  const Everything everything;
  const Tied tied;
  for (const Fixture* fixture : {static_cast<const Fixture*>(&everything), static_cast<const Fixture*>(&tied)}) {
    TestDevice device;
    WeightStore store(device, {.tier = HostTier::read});
    const ComponentId id = must_add(store, fixture->spec());
    Bytes reported = 0, of = 0;
    int calls = 0;
    REQUIRE(store.load(id, CancelToken(), [&](Bytes done, Bytes total) {
      CHECK(done > reported);
      reported = done;
      of = total;
      ++calls;
    }));
    CHECK(calls == static_cast<int>(std::count_if(fixture->model.blocks.begin(), fixture->model.blocks.end(),
                                                  [](const Block& b) { return !b.weights.empty(); })));
    CHECK(reported == store.weight_bytes(id));
    CHECK(of == store.weight_bytes(id));
    CHECK(store.counters().bytes_read == distinct_bytes(*fixture));
    CHECK(store.counters().images_kept == store.weight_bytes(id));
    CHECK_FALSE(store.in_use(id));
    check_images(store, *fixture, id);
    REQUIRE(store.load(id, CancelToken(), {}));
    CHECK(store.counters().bytes_read == distinct_bytes(*fixture));
    store.demote_idle();
    check_images(store, *fixture, id);
  }
}

TEST_CASE("load: whatever fails and whenever it is cancelled, nothing of it stays") {
  Tied model;
  const CancelToken cancel;
  int reads = 0, at = -1;
  hook(model, [&] {
    if (++reads == at) cancel.cancel();
  });
  TestDevice device;
  WeightStore store(device, {.tier = HostTier::read});
  const ComponentId id = must_add(store, model.spec());
  const auto other = model.spec("other");
  const ComponentId neighbour = must_add(store, other);
  REQUIRE(store.fetch({neighbour, 0}, {}, CancelToken()));
  for (const bool unbooked : {false, true}) {
    if (unbooked) store.demote({id, 1});
    const auto before = store.host_ledger().report();
    const auto check_nothing = [&](const Status& status, Code code) {
      REQUIRE_FALSE(status);
      CHECK(status.error().code == code);
      CHECK(status.error().message.find("test") != std::string::npos);
      CHECK(store.host_ledger().report().by_use == before.by_use);
      CHECK(store.counters().images_kept == store.layout({neighbour, 0}).size);
      CHECK(store.needs_staging({id, 1}) == unbooked);
      CHECK_FALSE(store.in_use(id));
      for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b) CHECK_FALSE(store.has_host_copy({id, b}));
      CHECK(store.has_host_copy({neighbour, 0}));
    };
    for (at = 1;; ++at) {
      cancel.reset();
      reads = 0;
      const auto status = store.load(id, cancel, {});
      if (status) break;
      check_nothing(status, Code::cancelled);
      REQUIRE(at < 100);
    }
    CHECK(at == 4);  // one read for each tensor of the file; cancelling in the last one is too late
    at = -1;
    cancel.reset();
    store.demote_idle();
    REQUIRE(store.fetch({neighbour, 0}, {}, CancelToken()));
    const auto hold = [&] { return store.hold(id); };
    static_cast<void>(hold());  // books, makes nothing
    if (unbooked) store.demote({id, 1});
    store.demote({neighbour, 0});
    for (int n = 0; n < 4; ++n) {
      CAPTURE(n);
      const auto books = store.host_ledger().report();
      device.fail_host_allocation = n;
      const auto status = store.load(id, cancel, {});
      REQUIRE_FALSE(status);
      CHECK(status.error().code == Code::device_oom);
      CHECK(store.host_ledger().report().by_use == books.by_use);
      CHECK(store.counters().images_kept == 0);
    }
    device.fail_host_allocation = -1;
    REQUIRE(store.fetch({neighbour, 0}, {}, CancelToken()));
  }
  {
    const auto hold = store.hold(id);
    CHECK(store.load(id, CancelToken(), {}).error().code == Code::invalid_argument);
  }
  REQUIRE(store.load(id, CancelToken(), {}));
  check_images(store, model, id);
}

TEST_CASE("load: what the budget does not keep is not loaded; disk loads nothing, mapped reads ahead without a copy") {
  const Everything model;
  TestDevice device;
  WeightStore store(device, {.tier = HostTier::read, .host_budget = 7 * MiB + 512 * KiB});
  const ComponentId id = must_add(store, model.spec());
  REQUIRE(store.load(id, CancelToken(), {}));
  CHECK(store.counters().images_kept > 0);
  CHECK(store.counters().images_kept < store.weight_bytes(id));
  CHECK(store.host_ledger().report().peak <= 7 * MiB + 512 * KiB);
  check_images(store, model, id);

  WeightStore disk(device, {.tier = HostTier::disk});
  const ComponentId d = must_add(disk, model.spec());
  int calls = 0;
  const LoadProgress count = [&](Bytes, Bytes) { ++calls; };
  REQUIRE(disk.load(d, CancelToken(), count));
  CHECK(calls == 0);
  CHECK(disk.counters().bytes_read == 0);

  WeightStore mapped(device, {.tier = HostTier::mapped});
  const ComponentId m = must_add(mapped, model.spec());
  REQUIRE(mapped.load(m, CancelToken(), count));
  CHECK(calls == 4);
  CHECK(mapped.counters().bytes_read == 0);
  CHECK(mapped.counters().images_kept == 0);
  check_images(mapped, model, m);
  const CancelToken cancel;
  CHECK(mapped.load(m, cancel, [&](Bytes, Bytes) { cancel.cancel(); }).error().code == Code::cancelled);
  check_images(mapped, model, m);
}

TEST_CASE("load: a file that changed since it was opened is told before it is read") {
  for (HostTier tier : {HostTier::mapped, HostTier::read}) {
    const TestFolder folder;
    write_test_file(folder.file("t.safetensors"), {random_tensor("t", DType::f32, {8, 8}, 1)});
    Fixture model;
    model.block();
    model.weight(open_test_file(folder.file("t.safetensors"), *system_files()), "t", WeightRole::matrix);
    TestDevice device;
    WeightStore store(device, {.tier = tier});
    const ComponentId id = must_add(store, model.spec());
    std::ofstream(folder.file("t.safetensors"), std::ios::app) << "more";
    CHECK(store.load(id, CancelToken(), {}).error().code == Code::io);
    CHECK(store.counters().images_kept == 0);
  }
}
