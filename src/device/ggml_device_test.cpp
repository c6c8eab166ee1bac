#include "device/ggml_device.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/heap.h"
#include "device/arena.h"
#include "device/test_graphs.h"

using namespace sluice;

TEST_CASE("cpu device: says what it is and what there is") {
  auto device = open_device("cpu:threads=2");
  REQUIRE(device);
  CHECK((*device)->info().name == "cpu");
  CHECK((*device)->info().threads == 2);
  CHECK((*device)->info().host_memory);
  CHECK((*device)->info().max_buffer == GiB);
  const MemoryView memory = (*device)->memory();
  CHECK(memory.known);
  CHECK(memory.free > 0);
  CHECK(memory.free <= memory.total);
  const auto listed = list_devices();
  REQUIRE(!listed.empty());
  CHECK(std::ranges::any_of(listed, [](const DeviceListing& d) { return d.info.kind == DeviceKind::cpu; }));
}

TEST_CASE("open_device: names that do not exist and options that are wrong are named") {
  const auto message = [](const char* name, Code code) {
    const auto device = open_device(name);
    REQUIRE_FALSE(device);
    CHECK(device.error().code == code);
    return device.error().message;
  };
  CHECK(message("cuda9", Code::not_found).find("cpu") != std::string::npos);
  CHECK(message("cpu:threads=0", Code::invalid_argument).find("'threads'") != std::string::npos);
  CHECK(message("cpu:link=fast", Code::invalid_argument).find("'link'") != std::string::npos);
  CHECK(message("cpu:speed=1", Code::invalid_argument).find("'speed'") != std::string::npos);
  CHECK(message("cpu:threads", Code::invalid_argument).find("'threads'") != std::string::npos);
  CHECK(message("cpu:poll=0,poll=1", Code::invalid_argument).find("'poll'") != std::string::npos);
  CHECK(message("", Code::invalid_argument).find("name") != std::string::npos);
}

TEST_CASE("cpu device: copies, computes and keeps its books") {
  auto device = open_device("cpu:threads=1,link=1GB/s,latency=1us,compute=1GFLOPS");
  REQUIRE(device);
  Device& cpu = **device;
  CHECK(cpu.rates().link_bytes_per_s == 1e9);
  CHECK(cpu.rates().flops_per_s == 1e9);
  const Bytes before = cpu.ledger().report().total;
  {
    TestProduct product(64, 32, 8);
    auto arena = Arena::open(cpu, product.bytes(cpu));
    REQUIRE(arena);
    CHECK(cpu.ledger().report().total == before + arena->size());
    product.bind(cpu, *arena);
    const auto ended = cpu.compute(product.graph(), 0, CancelToken{});
    REQUIRE(ended);
    CHECK(product.result(cpu) == product.expected());
    CHECK(cpu.live_buffers() == 1);
  }
  CHECK(cpu.live_buffers() == 0);
  CHECK(cpu.ledger().report().total == before);
}

TEST_CASE("cpu device: copies beyond a tensor or without memory are refused, not aborted on") {
  auto device = open_device("cpu:threads=1");
  REQUIRE(device);
  TestProduct product(64, 32, 8);
  std::vector<std::byte> bytes(1 << 16);
  CHECK_FALSE((*device)->set(product.weight(), 0, std::span(bytes).first(4), 0, CancelToken{}));
  auto arena = Arena::open(**device, product.bytes(**device));
  REQUIRE(arena);
  product.bind(**device, *arena);
  CHECK((*device)->set(product.weight(), 0, std::span(bytes).first(ggml_nbytes(product.weight())), 0, CancelToken{}));
  CHECK_FALSE((*device)->set(product.weight(), 4, std::span(bytes).first(ggml_nbytes(product.weight())), 0, CancelToken{}));
  CHECK_FALSE((*device)->get(product.weight(), ~Bytes{0}, std::span(bytes).first(1), 0));
  CHECK_FALSE((*device)->allocate(0));
  CHECK((*device)->allocate(0).error().code == Code::invalid_argument);
}

TEST_CASE("cpu device: host memory is page-aligned and pageable") {
  auto device = open_device("cpu:threads=1");
  REQUIRE(device);
  auto host = (*device)->allocate_host(10'000);
  REQUIRE(host);
  CHECK((*host)->bytes().size() == 10'000);
  CHECK(reinterpret_cast<std::uintptr_t>((*host)->bytes().data()) % 4096 == 0);
  CHECK_FALSE((*host)->pinned());
}

TEST_CASE("cpu device: two handles share the host's ledger") {
  auto a = open_device("cpu:threads=1"), b = open_device("cpu:threads=1");
  REQUIRE((a && b));
  CHECK(&(*a)->ledger() == &(*b)->ledger());
}

TEST_CASE("cpu device: a computation ends soon after it is cancelled") {
  auto device = open_device("cpu:threads=2");
  REQUIRE(device);
  // Some seconds of products, each a few milliseconds.
  TestChain chain(512, 3000);
  auto arena = Arena::open(**device, chain.bytes(**device));
  REQUIRE(arena);
  chain.bind(**device, *arena);
  CancelToken cancel;
  std::chrono::steady_clock::time_point cancelled_at;
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    cancelled_at = std::chrono::steady_clock::now();
    cancel.cancel();
  });
  const auto ended = (*device)->compute(chain.graph(), 0, cancel);
  const auto returned_at = std::chrono::steady_clock::now();
  canceller.join();
  REQUIRE_FALSE(ended);
  CHECK(ended.error().code == Code::cancelled);
  // Bounded by one node; a whole second leaves room for sanitizers on a busy machine.
  CHECK(returned_at - cancelled_at < std::chrono::seconds(1));
  CHECK((*device)->compute(chain.graph(), 0, cancel).error().code == Code::cancelled);
  std::vector<std::byte> bytes(4);
  CHECK((*device)->set(chain.input(), 0, bytes, 0, cancel).error().code == Code::cancelled);
}

TEST_CASE("measure_backend: exact, repeatable, without memory, equal to what the backend then takes") {
  for (const char* name : {"cpu:threads=1", "cpu:threads=2", "cpu:threads=3"}) {
    CAPTURE(name);
    auto device = open_device(name);
    REQUIRE(device);
    // Products with a quantised weight need room for the quantised activations: tens of KiB, more with more rows.
    TestProduct small(512, 64, 32, GGML_TYPE_Q8_0), large(1024, 64, 300, GGML_TYPE_Q8_0);
    ggml_cgraph* graphs[] = {large.graph(), small.graph()};
    const auto measured = (*device)->measure_backend(graphs);
    REQUIRE(measured);
    CHECK(*measured > 300 * 1024);
    CHECK((*device)->measure_backend(graphs).value() == *measured);
    CHECK(open_device(name).value()->measure_backend(graphs).value() == *measured);
    const auto of_small = (*device)->measure_backend(std::span(graphs).last(1));
    REQUIRE(of_small);
    CHECK(*of_small < *measured);

    const auto bytes = large.bytes(**device) + small.bytes(**device);
    auto arena = Arena::open(**device, bytes);
    REQUIRE(arena);
    const Address end = large.bind(**device, *arena);
    small.bind(**device, *arena, end);
    const auto grown = [&](ggml_cgraph* graph) {
      const HeapUse before = heap_in_use();
      REQUIRE((*device)->compute(graph, 0, CancelToken{}));
      return static_cast<std::int64_t>(heap_in_use().bytes) - static_cast<std::int64_t>(before.bytes);
    };
    if (!heap_in_use().known) continue;
    // The heap rounds a large block up to pages and adds its own header.
    const std::int64_t slack = 8192;
    const auto first = grown(small.graph());
    CHECK(first >= static_cast<std::int64_t>(*of_small));
    CHECK(first <= static_cast<std::int64_t>(*of_small) + slack);
    const auto more = first + grown(large.graph());
    CHECK(more >= static_cast<std::int64_t>(*measured));
    CHECK(more <= static_cast<std::int64_t>(*measured) + slack);
    CHECK(grown(small.graph()) < 1024);
  }
}

TEST_CASE("rates: measured once, two significant figures") {
  auto device = open_device("cpu:threads=1");
  REQUIRE(device);
  const auto start = std::chrono::steady_clock::now();
  const Device::Rates rates = (*device)->rates();
  const auto took = std::chrono::steady_clock::now() - start;
  CHECK(rates.link_bytes_per_s > 1e7);
  CHECK(rates.flops_per_s > 1e7);
  CHECK(rates.link_latency_s > 0);
  CHECK(took < std::chrono::seconds(5));
  CHECK((*device)->rates().flops_per_s == rates.flops_per_s);
  CHECK((*device)->rates().link_bytes_per_s == rates.link_bytes_per_s);
}

TEST_CASE("cpu device: set beside a running compute") {
  auto device = open_device("cpu:threads=2");
  REQUIRE(device);
  TestChain chain(128, 20);
  TestProduct other(256, 256, 4);
  auto arena = Arena::open(**device, align_up(chain.bytes(**device), 4096) + other.bytes(**device));
  REQUIRE(arena);
  chain.bind(**device, *arena);
  other.bind(**device, *arena, align_up(chain.bytes(**device), 4096));
  std::thread link([&] {
    std::vector<std::byte> bytes(ggml_nbytes(other.weight()), std::byte{1});
    for (int i = 0; i < 50; ++i) CHECK((*device)->set(other.weight(), 0, bytes, 0, CancelToken{}));
  });
  for (int i = 0; i < 3; ++i) CHECK((*device)->compute(chain.graph(), 0, CancelToken{}));
  link.join();
}
