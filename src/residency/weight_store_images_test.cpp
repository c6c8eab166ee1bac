#include "residency/weight_store.h"

#include <doctest/doctest.h>

#include "io/faulty_files.h"
#include "residency/image_reader.h"
#include "residency/test_device.h"
#include "residency/test_model.h"

using namespace sluice;

TEST_CASE("images: equal to an independent construction in every tier, and padding is zero") {
  const Everything model;
  for (HostTier tier : kTiers) {
    CAPTURE(static_cast<int>(tier));
    TestDevice device;
    WeightStore store(device, {.tier = tier});
    const ComponentId id = must_add(store, model.spec());
    CHECK(store.counters().bytes_read == 0);
    const CancelToken cancel;
    constexpr int kFetches = 3;
    for (int fetch = 0; fetch < kFetches; ++fetch)
      for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b) {
        CAPTURE(b);
        const BlockLayout& layout = store.layout({id, b});
        auto staging = staging_for(store, id, model.model);
        const auto image =
            store.fetch({id, b}, store.needs_staging({id, b}) ? std::span(staging) : std::span<std::byte>(), cancel);
        REQUIRE_MESSAGE(image.has_value(), image.error().message);
        CHECK(equal(*image, expected_image(model, b, layout)));
      }
    const auto counters = store.counters();
    CHECK(counters.fetched == kFetches * store.weight_bytes(id));
    // Only GGUF's padding between neighbours may be read along; this file has none, since its matrices are multiples of 32
    // bytes.
    const Bytes reads = tier == HostTier::mapped ? 0 : tier == HostTier::read ? 1 : kFetches;
    CHECK(counters.bytes_read == reads * store.file_bytes(id));
    CHECK(counters.images_kept == (tier == HostTier::read ? store.weight_bytes(id) : 0));
    CHECK(store.host_ledger().report().by_use[static_cast<std::size_t>(Use::images)] == counters.images_kept);
    CHECK(store.host_ledger().report().by_use[static_cast<std::size_t>(Use::staging)] <= Scratch::kMost);
    CHECK(device.ledger().report().peak == 0);
  }
}

TEST_CASE("images: read once over three pictures of four steps when there is room for them") {
  const Everything model;
  TestDevice device;
  WeightStore store(device, {.tier = HostTier::read});
  const ComponentId id = must_add(store, model.spec());
  for (int step = 0; step < 3 * 4; ++step)
    for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b) REQUIRE(store.fetch({id, b}, {}, CancelToken()));
  CHECK(store.counters().bytes_read == store.file_bytes(id));
  CHECK(device.host_allocations == 4);
}

TEST_CASE("fetch: whichever read fails, the error is io, nothing is half kept and the next fetch is right") {
  Everything plain;
  for (HostTier tier : {HostTier::disk, HostTier::read}) {
    std::uint64_t headers = 0;
    {
      const FaultyFiles files(system_files(), {});
      open_test_file(plain.folder.file("a.safetensors"), files);
      open_test_file(plain.folder.file("b.gguf"), files);
      headers = files.reads();
    }
    bool met = true;
    for (std::uint64_t n = 1; met; ++n) {
      CAPTURE(n);
      const FaultyFiles files(system_files(), {.fail_read = headers + n, .hiccups = n % 2 == 0});
      const auto a = open_test_file(plain.folder.file("a.safetensors"), files),
                 b = open_test_file(plain.folder.file("b.gguf"), files);
      Fixture model{plain.model, plain.sources};
      for (auto& block : model.sources)
        for (auto& source : block) source.file = source.file->format == "gguf" ? b : a;
      TestDevice device;
      WeightStore store(device, {.tier = tier});
      const ComponentId id = must_add(store, model.spec());
      const auto before = store.host_ledger().report();
      met = false;
      for (std::uint32_t block = 0; block < model.model.blocks.size(); ++block) {
        auto staging = staging_for(store, id, model.model);
        const Bytes kept = store.counters().images_kept;
        auto image = store.fetch({id, block}, staging, CancelToken());
        if (!image) {
          met = true;
          CHECK(image.error().code == Code::io);
          CHECK(image.error().message.find(plain.folder.file("")) != std::string::npos);
          CHECK(store.counters().images_kept == kept);
          CHECK(store.host_ledger().report().by_use == before.by_use);
          image = store.fetch({id, block}, staging, CancelToken());
          REQUIRE(image);
        }
        CHECK(equal(*image, expected_image(plain, block, store.layout({id, block}))));
      }
      REQUIRE(n < 1000);
      CHECK((met || n > 10));
    }
  }
}

TEST_CASE("fetch: what the host budget does not keep is read at each use, with one warning") {
  const Everything model;
  TestDevice device;
  WeightStore unlimited(device, {.tier = HostTier::read});
  const ComponentId all = must_add(unlimited, model.spec());
  const Bytes whole = unlimited.host_ledger().report().total;
  Bytes largest = 0;
  for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b) largest = std::max(largest, unlimited.layout({all, b}).size);
  CHECK(whole > unlimited.weight_bytes(all));
  for (const Bytes budget : {whole, whole - 1, largest + 2 * MiB, 2 * MiB}) {
    CAPTURE(budget);
    int warnings = 0;
    WeightStore store(device,
                      {.tier = HostTier::read, .host_budget = budget, .log = LogSink([&](LogLevel level, std::string_view) {
                                                                        warnings += level == LogLevel::warning;
                                                                      })});
    const ComponentId id = must_add(store, model.spec());
    for (int times = 0; times < 2; ++times) const auto hold = store.hold(id);
    CHECK(warnings == (budget == whole ? 0 : 1));
    Bytes staged = 0;
    for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b)
      if (store.needs_staging({id, b})) staged = std::max(staged, store.layout({id, b}).size);
    CHECK((staged > 0) == (budget != whole));
    if (budget > largest + MiB) CHECK(store.host_ledger().reserve(Use::staging, staged));
    for (int round = 0; round < 2; ++round)
      for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b) {
        auto staging = staging_for(store, id, model.model);
        const auto image =
            store.fetch({id, b}, store.needs_staging({id, b}) ? std::span(staging) : std::span<std::byte>(), CancelToken());
        REQUIRE(image);
        CHECK(equal(*image, expected_image(model, b, store.layout({id, b}))));
      }
    CHECK(store.host_ledger().report().peak <= budget);
    CHECK(warnings == (budget == whole ? 0 : 1));
  }
}

TEST_CASE("HostTier::read, several components: whatever the budget keeps, the largest image that it does not fits beside") {
  const Everything first, second;
  TestDevice device;
  Bytes whole = 0, largest = 0;
  {
    WeightStore store(device, {.tier = HostTier::read});
    const ComponentId id = must_add(store, first.spec("a"));
    must_add(store, second.spec("b"));
    whole = store.host_ledger().report().total;
    for (std::uint32_t b = 0; b < first.model.blocks.size(); ++b) largest = std::max(largest, store.layout({id, b}).size);
  }
  for (Bytes budget = largest + 2 * MiB; budget < whole + MiB; budget += 256 * KiB) {
    CAPTURE(budget);
    WeightStore store(device, {.tier = HostTier::read, .host_budget = budget});
    Bytes staged = 0;
    for (const ComponentId id : {must_add(store, first.spec("a")), must_add(store, second.spec("b"))})
      for (std::uint32_t b = 0; b < store.model(id).blocks.size(); ++b)
        if (store.needs_staging({id, b})) staged = std::max(staged, store.layout({id, b}).size);
    CHECK((staged == 0) == (budget >= whole));
    if (staged > 0) CHECK(store.host_ledger().reserve(Use::staging, staged));
  }
}

TEST_CASE("fetch: host memory that runs out for a kept image") {
  const Everything model;
  TestDevice device;
  int warnings = 0;
  WeightStore store(device, {.tier = HostTier::read, .log = LogSink([&](LogLevel level, std::string_view) {
                                                       warnings += level == LogLevel::warning;
                                                     })});
  const ComponentId id = must_add(store, model.spec());
  const auto hold = store.hold(id);
  const auto before = store.host_ledger().report();
  device.fail_host_allocation = 0;
  const auto refused = store.fetch({id, 0}, {}, CancelToken());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::device_oom);
  CHECK_FALSE(store.needs_staging({id, 0}));
  CHECK(store.host_ledger().report().by_use == before.by_use);

  auto staging = staging_for(store, id, model.model);
  device.fail_host_allocation = 0;
  for (int round = 0; round < 2; ++round) {
    const auto image = store.fetch({id, 0}, staging, CancelToken());
    REQUIRE(image);
    CHECK(equal(*image, expected_image(model, 0, store.layout({id, 0}))));
  }
  CHECK(store.needs_staging({id, 0}));
  CHECK(warnings == 1);
  CHECK(store.host_ledger().report().total == before.total - store.layout({id, 0}).size);
  const auto too_small = store.fetch({id, 0}, std::span(staging).first(store.layout({id, 0}).size - 1), CancelToken());
  REQUIRE_FALSE(too_small);
  CHECK(too_small.error().code == Code::invalid_argument);
}

TEST_CASE("fetch: cancelled before the first read and between any two") {
  for (HostTier tier : kTiers) {
    Everything model;
    const CancelToken cancel;
    int reads = 0, cancel_at = 1;
    hook(model, [&] {
      if (++reads == cancel_at) cancel.cancel();
    });
    TestDevice device;
    WeightStore store(device, {.tier = tier});
    const ComponentId id = must_add(store, model.spec());
    auto staging = staging_for(store, id, model.model);
    cancel.cancel();
    for (std::uint32_t b : {0u, 1u, 3u, 4u}) {
      const auto stopped = store.fetch({id, b}, staging, cancel);
      REQUIRE_FALSE(stopped);
      CHECK(stopped.error().code == Code::cancelled);
    }
    CHECK(reads == 0);
    CHECK(store.counters().images_kept == 0);
    if (tier != HostTier::mapped)
      for (cancel_at = 1; cancel_at < 4; ++cancel_at) {
        cancel.reset();
        reads = 0;
        const auto stopped = store.fetch({id, 1}, staging, cancel);
        REQUIRE_FALSE(stopped);
        CHECK(stopped.error().code == Code::cancelled);
        CHECK(reads == cancel_at);  // not one more
      }
    cancel.reset();
    cancel_at = -1;
    const auto image = store.fetch({id, 1}, staging, cancel);
    REQUIRE(image);
    CHECK(equal(*image, expected_image(model, 1, store.layout({id, 1}))));
  }
}
