#include "device/arena.h"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include "device/sim_device.h"

using namespace sluice;

namespace {

ggml_context_ptr no_alloc() {
  return ggml_context_ptr{ggml_init({.mem_size = 16 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true})};
}

Bytes allocated(const SimDevice& sim) {
  Bytes bytes = 0;
  for (const SimEvent& event : sim.log())
    if (event.kind == SimEvent::Kind::alloc && event.ok) bytes += event.bytes;
  return bytes;
}

}  // namespace

TEST_CASE("arena: as few buffers as the size needs, exactly as many bytes as asked") {
  for (const Bytes size : {Bytes{1}, Bytes{4095}, Bytes{4096}, Bytes{4097}, Bytes{3 * 4096}, Bytes{3 * 4096 + 17}}) {
    CAPTURE(size);
    auto sim = SimDevice::open({.memory = MiB, .max_buffer = 4096 + 5, .threads = 1});
    REQUIRE(sim);
    CHECK(Arena::chunk_size_for((*sim)->info()) == 4096);
    {
      auto arena = Arena::open(**sim, size);
      REQUIRE(arena);
      CHECK(arena->size() == size);
      CHECK((*sim)->live_buffers() == static_cast<int>((size + 4095) / 4096));
      CHECK(allocated(**sim) == size);
      CHECK((*sim)->high_water() == size);
      CHECK((*sim)->ledger().report().total == size);
      Arena moved = std::move(*arena);
      CHECK(arena->size() == 0);
      CHECK((*sim)->ledger().report().total == size);
      moved = Arena{};
      CHECK((*sim)->live_buffers() == 0);
    }
    CHECK((*sim)->ledger().report().total == 0);
  }
}

TEST_CASE("arena: nothing is kept when any of its allocations fails") {
  for (std::uint64_t n = 1; n <= 4; ++n) {
    CAPTURE(n);
    auto sim = SimDevice::open({.memory = MiB, .max_buffer = 4096, .fail_alloc = n, .threads = 1});
    REQUIRE(sim);
    const auto refused = Arena::open(**sim, 4 * 4096);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::device_oom);
    CHECK((*sim)->live_buffers() == 0);
    CHECK((*sim)->ledger().report().total == 0);
    CHECK(Arena::open(**sim, 4 * 4096));
  }
}

TEST_CASE("arena: the ledger is asked before the device") {
  auto sim = SimDevice::open({.memory = MiB, .threads = 1});
  REQUIRE(sim);
  (*sim)->ledger().set_limit(4095);
  const auto refused = Arena::open(**sim, 4096);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::over_budget);
  CHECK(refused.error().needed == 4096);
  CHECK((*sim)->log().empty());
}

TEST_CASE("arena: binds what lies aligned in one chunk and refuses the rest") {
  auto sim = SimDevice::open({.memory = MiB, .max_buffer = 4096, .threads = 1});
  REQUIRE(sim);
  auto arena = Arena::open(**sim, 2 * 4096 + 1024);
  REQUIRE(arena);
  const auto context = no_alloc();
  const auto bytes = [&](std::int64_t size) { return ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, size); };
  const auto refused = [&](std::int64_t size, Address address) {
    const auto status = arena->bind(bytes(size), address);
    return !status && status.error().code == Code::invalid_argument;
  };
  CHECK(refused(64, 1));           // not aligned
  CHECK(refused(4097, 0));         // larger than a chunk
  CHECK(refused(4096, 64));        // crosses
  CHECK(refused(1025, 2 * 4096));  // beyond the end
  CHECK(refused(64, 3 * 4096));
  CHECK(refused(64, ~Bytes{0} - 63));
  ggml_tensor* tensor = bytes(4096);
  REQUIRE(arena->bind(tensor, 4096));
  CHECK_FALSE(arena->bind(tensor, 4096));  // has its place already
  CHECK_FALSE(arena->bind(ggml_view_1d(context.get(), tensor, 32, 0), 0));
  CHECK(arena->bind(bytes(1024), 2 * 4096));
  CHECK_FALSE(Arena{}.bind(bytes(1), 0));

  const std::vector<std::byte> data(4096, std::byte{7});
  REQUIRE((*sim)->set(tensor, 0, data, 0, CancelToken{}));
  const SimEvent set = (*sim)->log().back();
  CHECK(set.buffer == 2);
  CHECK(set.offset == 0);
  // Crosses from the first chunk into the second and leaves its last 4000 bytes alone.
  arena->discard(4000, 192);
  std::vector<std::byte> read(4096);
  REQUIRE((*sim)->get(tensor, 0, read, 0));
  for (std::size_t i = 0; i < read.size(); ++i) REQUIRE(read[i] == (i < 96 ? std::byte{0xFF} : std::byte{7}));
  CHECK((*sim)->counters().discards == 2);
  arena->discard(3 * 4096, 64);
  arena->discard(0, ~Bytes{0});
  CHECK((*sim)->counters().discards == 5);
}

TEST_CASE("arena: the zone grows and shrinks by chunks, and whole chunks keep their bytes") {
  auto sim = SimDevice::open({.memory = MiB, .max_buffer = 4096, .threads = 1});
  REQUIRE(sim);
  Arena arena(**sim);
  const auto context = no_alloc();
  for (const Bytes size :
       {Bytes{4096 + 64}, Bytes{3 * 4096}, Bytes{4 * 4096 + 32}, Bytes{4096}, Bytes{32}, Bytes{0}, Bytes{8192}}) {
    CAPTURE(size);
    const Bytes before = arena.zone(), kept = arena.kept_by(size);
    CHECK(kept <= std::min(before, size));
    CHECK((kept == before || kept % 4096 == 0));
    const std::vector<std::byte> data(64, std::byte{9});
    std::vector<std::byte> read(64);
    ggml_tensor* first = nullptr;
    if (kept >= 4096) {
      first = ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, 64);
      REQUIRE(arena.bind(first, 128));
      REQUIRE((*sim)->set(first, 0, data, 0, CancelToken{}));
    }
    const int generation = arena.generation();
    REQUIRE(arena.set_zone(size));
    CHECK(arena.generation() != generation);
    CHECK(arena.zone() == size);
    CHECK((*sim)->ledger().report().total == size);
    CHECK((*sim)->live_buffers() == static_cast<int>((size + 4095) / 4096));
    if (first) {
      REQUIRE((*sim)->get(first, 0, read, 0));
      CHECK(read == data);
    }
  }
}

TEST_CASE("arena: a zone that cannot grow is as large as before") {
  for (std::uint64_t n = 3; n <= 6; ++n) {
    CAPTURE(n);
    auto sim = SimDevice::open({.memory = MiB, .max_buffer = 4096, .fail_alloc = n, .threads = 1});
    REQUIRE(sim);
    auto arena = Arena::open(**sim, 4096 + 32);
    REQUIRE(arena);
    const auto grown = arena->set_zone(5 * 4096);
    CHECK(grown.has_value() == (n > 6));
    CHECK(arena->zone() == 4096 + 32);
    CHECK((*sim)->ledger().report().total == 4096 + 32);
    CHECK(arena->set_zone(5 * 4096));
  }
  // The limit is asked before anything is allocated or freed for good.
  auto sim = SimDevice::open({.memory = MiB, .max_buffer = 4096, .threads = 1});
  REQUIRE(sim);
  auto arena = Arena::open(**sim, 4096);
  (*sim)->ledger().set_limit(3 * 4096);
  const auto refused = arena->set_zone(4 * 4096);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::over_budget);
  CHECK(arena->zone() == 4096);
}

TEST_CASE("arena: shelves are buffers of their own, freed one by one") {
  auto sim = SimDevice::open({.memory = MiB, .max_buffer = 4096, .threads = 1});
  REQUIRE(sim);
  auto arena = Arena::open(**sim, 64);
  REQUIRE(arena);
  CHECK_FALSE(arena->add_shelf(0));
  CHECK_FALSE(arena->add_shelf(4097));  // this device means what it says
  const auto a = arena->add_shelf(4096), b = arena->add_shelf(100);
  REQUIRE(a);
  REQUIRE(b);
  CHECK(Arena::on_shelf(a->base));
  CHECK(arena->size() == 64 + 4096 + 100);
  CHECK((*sim)->live_buffers() == 3);
  const auto context = no_alloc();
  CHECK(arena->bind(ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, 100), b->base));
  CHECK_FALSE(arena->bind(ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, 101), b->base));
  CHECK_FALSE(arena->bind(ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, 1), b->base + 128));
  arena->remove_shelf(a->base);
  CHECK(arena->size() == 64 + 100);
  CHECK((*sim)->ledger().report().total == 64 + 100);
  CHECK_FALSE(arena->bind(ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, 1), a->base));
  arena->discard(b->base, 1000);
  arena->remove_shelf(b->base);
  CHECK((*sim)->live_buffers() == 1);
  CHECK(arena->shelves().empty());
}
