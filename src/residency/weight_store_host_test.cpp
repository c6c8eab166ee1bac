// Host images that make way, and come back.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "device/sim_device.h"
#include "residency/host_images.h"
#include "residency/image_reader.h"
#include "residency/test_device.h"
#include "residency/test_model.h"

using namespace sluice;

namespace {

constexpr Bytes kImage = 64 * 1024 * 2;

/// Components of equal blocks, each one f16 matrix of 128 KiB with a file of its own bytes.
struct Alike {
  TestFolder folder;
  std::shared_ptr<const TensorFile> file;
  std::vector<Fixture> fixtures;
  Alike(int components, int blocks) {
    std::vector<TestTensor> tensors;
    for (int i = 0; i < components * blocks; ++i)
      tensors.push_back(random_tensor("t" + std::to_string(i), DType::f16, {64, 1024}, static_cast<unsigned>(i)));
    write_test_file(folder.file("t.safetensors"), tensors, 64);
    file = open_test_file(folder.file("t.safetensors"), *system_files());
    fixtures.resize(static_cast<std::size_t>(components));
    for (int i = 0; i < components * blocks; ++i) {
      Fixture& fixture = fixtures[static_cast<std::size_t>(i / blocks)];
      fixture.block();
      fixture.weight(file, "t" + std::to_string(i), WeightRole::matrix);
    }
  }
  std::vector<ComponentId> add(WeightStore& store) const {
    std::vector<ComponentId> ids;
    for (std::size_t c = 0; c < fixtures.size(); ++c) ids.push_back(must_add(store, fixtures[c].spec(std::to_string(c))));
    return ids;
  }
};

Bytes booked(WeightStore& store) { return store.host_ledger().report().by_use[static_cast<std::size_t>(Use::images)]; }

void fetch_all(WeightStore& store, const Fixture& fixture, ComponentId id) {
  auto staging = staging_for(store, id, fixture.model);
  for (std::uint32_t b = 0; b < fixture.model.blocks.size(); ++b) {
    const bool staged = store.needs_staging({id, b});
    const auto image = store.fetch({id, b}, staged ? std::span(staging) : std::span<std::byte>(), CancelToken());
    REQUIRE_MESSAGE(image.has_value(), image.error().message);
    CHECK(equal(*image, expected_image(fixture, b, store.layout({id, b}))));
  }
}

std::vector<bool> copies(const WeightStore& store, ComponentId id) {
  std::vector<bool> list;
  for (std::uint32_t b = 0; b < store.model(id).blocks.size(); ++b) list.push_back(store.has_host_copy({id, b}));
  return list;
}

/// A budget for `images` beside the conversion buffer.
Bytes budget_for(const Alike& alike, Bytes images) {
  TestDevice device;
  WeightStore store(device, {.tier = HostTier::read});
  alike.add(store);
  return store.host_ledger().report().by_use[static_cast<std::size_t>(Use::staging)] + images;
}

}  // namespace

TEST_CASE("choose_taken: within what there is, no more taken than is needed, and room stays for what passes through") {
  for (unsigned seed = 0; seed < 5000; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    std::vector<Bytes> wanted(rng() % 8), idle(rng() % 8);
    for (Bytes& size : wanted) size = rng() % 4 == 0 ? 0 : rng() % 100;
    for (Bytes& size : idle) size = 1 + rng() % 100;
    const Bytes free = rng() % 400, passing = rng() % 60;
    const Taking taking = choose_taken(free, wanted, idle, passing);
    REQUIRE(taking.taken <= idle.size());
    REQUIRE(taking.kept.size() == wanted.size());
    Bytes kept = 0, largest = 0;
    bool all = true;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (taking.kept[i]) kept += wanted[i];
      if (!taking.kept[i]) largest = std::max(largest, wanted[i]);
      all = all && (taking.kept[i] || wanted[i] == 0);
    }
    const auto room = [&](std::size_t n) {
      return std::accumulate(idle.begin(), idle.begin() + static_cast<std::ptrdiff_t>(n), free);
    };
    const auto through = [&](std::size_t n) {
      Bytes most = std::max(passing, largest);
      for (std::size_t i = 0; i < n; ++i) most = std::max(most, idle[i]);
      return most;
    };
    if (kept > 0) {
      CHECK(kept + through(taking.taken) <= room(taking.taken));
      if (taking.taken > 0) CHECK(kept + through(taking.taken - 1) > room(taking.taken - 1));
      // What is left out would not have fitted beside what is kept and one staging buffer for the largest of all.
      const Bytes reserve = std::max(through(idle.size()), *std::max_element(wanted.begin(), wanted.end()));
      for (std::size_t i = 0; i < wanted.size(); ++i)
        if (!taking.kept[i] && wanted[i] > 0) CHECK(kept + wanted[i] + reserve > room(idle.size()));
    } else if (taking.taken > 0) {
      CHECK(room(taking.taken) >= largest);  // it can pass through at least
      CHECK(room(taking.taken - 1) < std::max(largest, passing));
    }
    const Taking unlimited = choose_taken(std::nullopt, wanted, idle, passing);
    CHECK(unlimited.taken == 0);
    for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(unlimited.kept[i] == (wanted[i] > 0));
    if (all && kept > 0) CHECK(choose_taken(free + 1000, wanted, idle, passing).taken == 0);
  }
}

TEST_CASE("hold: images of components that nobody holds make way, the least recently used first, and no more than needed") {
  const Alike alike(3, 3);
  TestDevice device;
  // Room for seven images and one to pass through.
  WeightStore store(device, {.tier = HostTier::read, .host_budget = budget_for(alike, 8 * kImage)});
  const auto ids = alike.add(store);
  {
    const auto a = store.hold(ids[0]);
    fetch_all(store, alike.fixtures[0], ids[0]);
  }
  {
    const auto b = store.hold(ids[1]);
    fetch_all(store, alike.fixtures[1], ids[1]);
  }
  fetch_all(store, alike.fixtures[0], ids[0]);  // now the second is the older one
  CHECK(copies(store, ids[0]) == std::vector<bool>(3, true));
  CHECK(copies(store, ids[1]) == std::vector<bool>(3, true));
  const auto c = store.hold(ids[2]);
  for (std::uint32_t b = 0; b < 3; ++b) CHECK_FALSE(store.needs_staging({ids[2], b}));
  CHECK(copies(store, ids[0]) == std::vector<bool>(3, true));
  CHECK(copies(store, ids[1]) == std::vector<bool>{false, false, true});
  CHECK(booked(store) == 7 * kImage);
  fetch_all(store, alike.fixtures[2], ids[2]);

  // Held components keep what they have: the second gets nothing from the third, and all from the first.
  const auto b = store.hold(ids[1]);
  CHECK(copies(store, ids[2]) == std::vector<bool>(3, true));
  CHECK(copies(store, ids[0]) == std::vector<bool>{false, false, true});
  for (std::uint32_t block = 0; block < 3; ++block) CHECK_FALSE(store.needs_staging({ids[1], block}));
  const auto a = store.hold(ids[0]);
  std::vector<bool> settled;
  for (std::uint32_t block = 0; block < 3; ++block) settled.push_back(store.needs_staging({ids[0], block}));
  CHECK(std::count(settled.begin(), settled.end(), true) == 2);
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < 3; ++i) fetch_all(store, alike.fixtures[i], ids[i]);
    for (std::uint32_t block = 0; block < 3; ++block) CHECK(store.needs_staging({ids[0], block}) == settled[block]);
  }
  CHECK(store.host_ledger().report().peak <= *store.host_ledger().report().limit);
}

TEST_CASE("hold: whoever alternates over too small a budget gets right images, and what needs staging is settled while held") {
  const Alike alike(4, 3);
  for (Bytes images = kImage; images <= 13 * kImage; images += kImage / 2) {
    CAPTURE(images);
    TestDevice device;
    WeightStore store(device, {.tier = HostTier::read, .host_budget = budget_for(alike, images)});
    const auto ids = alike.add(store);
    std::mt19937 rng(static_cast<unsigned>(images));
    for (int round = 0; round < 12; ++round) {
      const std::size_t i = rng() % ids.size();
      const auto hold = store.hold(ids[i]);
      bool any = false;
      for (std::uint32_t b = 0; b < 3; ++b) any = any || store.needs_staging({ids[i], b});
      CHECK(any == (images < 3 * kImage || (images < 4 * kImage)));
      // What is not kept finds its staging.
      if (any) CHECK(store.host_ledger().reserve(Use::staging, kImage));
      fetch_all(store, alike.fixtures[i], ids[i]);
    }
    CHECK(store.host_ledger().report().peak <= *store.host_ledger().report().limit);
  }
}

TEST_CASE("demote: a block that left and came back is no different from one that was never there: bits, counters, ledgers") {
  const Everything model;
  TestDevice device;
  WeightStore fresh(device, {.tier = HostTier::read}), store(device, {.tier = HostTier::read});
  const ComponentId id = must_add(store, model.spec()), first = must_add(fresh, model.spec());
  fetch_all(fresh, model, first);
  fetch_all(store, model, id);
  Bytes given = 0;
  for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b) {
    CHECK(store.has_host_copy({id, b}) == (store.layout({id, b}).size > 0));
    const Bytes before = booked(store);
    const Bytes gone = store.demote({id, b});
    CHECK(gone == store.layout({id, b}).size);
    CHECK(booked(store) == before - gone);
    CHECK_FALSE(store.has_host_copy({id, b}));
    CHECK(store.needs_staging({id, b}) == (gone > 0));
    CHECK(store.demote({id, b}) == 0);
    given += gone;
  }
  CHECK(given == store.weight_bytes(id));
  CHECK(booked(store) == 0);
  CHECK(store.counters().images_kept == 0);
  const auto before = store.counters();
  fetch_all(store, model, id);
  CHECK(store.counters().bytes_read - before.bytes_read == fresh.counters().bytes_read);
  CHECK(store.counters().fetched - before.fetched == fresh.counters().fetched);
  CHECK(store.counters().images_kept == fresh.counters().images_kept);
  CHECK(store.host_ledger().report().by_use == fresh.host_ledger().report().by_use);
  CHECK(store.host_ledger().report().peak == fresh.host_ledger().report().peak);
  CHECK(store.demote_idle() == store.weight_bytes(id));
  CHECK(store.demote_idle() == 0);
  const auto hold = store.hold(id);  // books it all again
  CHECK(booked(store) == store.weight_bytes(id));
  for (std::uint32_t b = 0; b < model.model.blocks.size(); ++b) CHECK_FALSE(store.needs_staging({id, b}));
  fetch_all(store, model, id);
}

TEST_CASE("demote: not what is held, in use or flagged; block holds and flags are each block's own") {
  const Alike alike(2, 3);
  TestDevice device;
  WeightStore store(device, {.tier = HostTier::read});
  const auto ids = alike.add(store);
  for (std::size_t i = 0; i < 2; ++i) fetch_all(store, alike.fixtures[i], ids[i]);
  {
    const auto hold = store.hold(ids[0]);
    CHECK(store.in_use(ids[0]));
    CHECK_FALSE(store.in_use(ids[1]));
    CHECK_FALSE(store.held({ids[0], 0}));
    CHECK(store.demote({ids[0], 0}) == 0);
    CHECK(store.demote_idle() == 3 * kImage);
    CHECK(copies(store, ids[0]) == std::vector<bool>(3, true));
  }
  {
    auto hold = store.hold(BlockId{ids[0], 1});
    auto twice = store.hold(BlockId{ids[0], 1});
    CHECK(store.held({ids[0], 1}));
    CHECK_FALSE(store.held({ids[0], 0}));
    CHECK(store.in_use(ids[0]));
    CHECK_FALSE(store.remove(ids[0]));
    CHECK(store.demote({ids[0], 1}) == 0);
    hold.reset();
    CHECK(store.held({ids[0], 1}));
    twice.reset();
    CHECK_FALSE(store.held({ids[0], 1}));
    CHECK_FALSE(store.in_use(ids[0]));
  }
  store.set_flag({ids[0], 0}, BlockFlag::merged);
  store.set_flag({ids[0], 2}, BlockFlag::row_split);
  CHECK(store.has_flag({ids[0], 0}, BlockFlag::merged));
  CHECK_FALSE(store.has_flag({ids[0], 0}, BlockFlag::row_split));
  CHECK_FALSE(store.has_flag({ids[0], 1}, BlockFlag::merged));
  CHECK(store.demote({ids[0], 0}) == 0);
  CHECK(store.demote_idle() == kImage);
  CHECK(copies(store, ids[0]) == std::vector<bool>{true, false, true});
  store.set_flag({ids[0], 0}, BlockFlag::merged, false);
  CHECK(store.demote_idle() == kImage);
  CHECK(copies(store, ids[0]) == std::vector<bool>{false, false, true});
  store.set_flag({ids[0], 2}, BlockFlag::row_split, false);
  REQUIRE(store.remove(ids[0]));
}

TEST_CASE("hold: a flagged block does not make way for another component") {
  const Alike alike(2, 2);
  TestDevice device;
  WeightStore store(device, {.tier = HostTier::read, .host_budget = budget_for(alike, 3 * kImage)});
  const auto ids = alike.add(store);
  const auto first = [&] {
    const auto hold = store.hold(ids[0]);
    fetch_all(store, alike.fixtures[0], ids[0]);
  };
  first();
  store.set_flag({ids[0], 0}, BlockFlag::merged);
  CHECK(copies(store, ids[0]) == std::vector<bool>{true, true});
  const auto hold = store.hold(ids[1]);
  CHECK(copies(store, ids[0]) == std::vector<bool>{true, false});
  CHECK(store.needs_staging({ids[1], 0}) != store.needs_staging({ids[1], 1}));
  fetch_all(store, alike.fixtures[1], ids[1]);
}

TEST_CASE("fetch: where the system has no memory, idle images go before a block falls back to its file") {
  const Alike alike(2, 2);
  TestDevice device;
  WeightStore store(device, {.tier = HostTier::read});
  const auto ids = alike.add(store);
  fetch_all(store, alike.fixtures[0], ids[0]);
  const auto hold = store.hold(ids[1]);
  device.fail_host_allocation = 0;
  REQUIRE(store.fetch({ids[1], 0}, {}, CancelToken()));
  CHECK(copies(store, ids[0]) == std::vector<bool>{false, true});
  CHECK(copies(store, ids[1]) == std::vector<bool>{true, false});
  fetch_all(store, alike.fixtures[1], ids[1]);
}

TEST_CASE("has_host_copy: mapped always, disk never") {
  const Alike alike(1, 1);
  TestDevice device;
  WeightStore mapped(device, {.tier = HostTier::mapped}), disk(device, {.tier = HostTier::disk});
  const auto a = alike.add(mapped), b = alike.add(disk);
  CHECK(mapped.has_host_copy({a[0], 0}));
  fetch_all(disk, alike.fixtures[0], b[0]);
  CHECK_FALSE(disk.has_host_copy({b[0], 0}));
  CHECK(mapped.demote_idle() == 0);
  disk.drop_mapped({b[0], 0});
}

TEST_CASE("pinned: booked as what the buffer says of itself; its budget and the device's cap leave the rest pageable") {
  const Alike alike(1, 4);
  const auto pinned_of = [&](const SimOptions& options, std::optional<Bytes> pinned_budget, int& warnings) {
    auto device = SimDevice::open(options);
    REQUIRE(device);
    (*device)->set_log(LogSink([&](LogLevel level, std::string_view) { warnings += level == LogLevel::warning; }));
    WeightStore store(**device, {.tier = HostTier::read, .pinned_budget = pinned_budget});
    const auto ids = alike.add(store);
    fetch_all(store, alike.fixtures[0], ids[0]);
    CHECK(booked(store) == 4 * kImage);
    const Bytes pinned = store.pinned_ledger().report().total;
    CHECK(store.pinned_ledger().report().by_use[static_cast<std::size_t>(Use::images)] == pinned);
    CHECK(store.demote_idle() == 4 * kImage);
    CHECK(store.pinned_ledger().report().total == 0);
    fetch_all(store, alike.fixtures[0], ids[0]);
    CHECK(store.pinned_ledger().report().total == pinned);  // what was given back can be pinned again
    REQUIRE(store.remove(ids[0]));
    CHECK(store.pinned_ledger().report().total == 0);
    return pinned;
  };
  int warnings = 0;
  CHECK(pinned_of({.threads = 1}, std::nullopt, warnings) == 0);
  CHECK(warnings == 0);
  CHECK(pinned_of({.pinned = GiB, .threads = 1}, std::nullopt, warnings) == 4 * kImage);
  CHECK(pinned_of({.pinned = GiB, .threads = 1}, 3 * kImage - 1, warnings) == 2 * kImage);
  CHECK(pinned_of({.pinned = GiB, .threads = 1}, 0, warnings) == 0);
  CHECK(warnings == 0);
  CHECK(pinned_of({.pinned = kImage, .threads = 1}, std::nullopt, warnings) == kImage);
  CHECK(warnings == 1);

  TestDevice cpu;
  cpu.pins = true;
  WeightStore store(cpu, {.tier = HostTier::read});
  const auto ids = alike.add(store);
  fetch_all(store, alike.fixtures[0], ids[0]);
  CHECK(store.pinned_ledger().report().peak == 0);  // nothing is pinned for a CPU device
  REQUIRE(store.host_ledger().reserve(Use::staging, 100));
  const auto staging = store.allocate_host(0, Use::staging, 100);
  REQUIRE(staging);
  CHECK(staging->buffer->bytes().size() >= 100);
}
