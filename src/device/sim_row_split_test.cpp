// Weights whose rows lie spread over simulated devices.
#include <doctest/doctest.h>

#include <cstring>

#include "device/row_split.h"
#include "device/sim_device.h"

using namespace sluice;

namespace {

std::unique_ptr<SimDevice> sim(const char* label, Bytes memory = 64 * MiB, std::uint64_t fail_alloc = 0) {
  SimOptions options;
  options.label = label;
  options.threads = 1;
  options.memory = memory;
  options.row_split = true;
  options.fail_alloc = fail_alloc;
  return SimDevice::open(options).value();
}

struct Weights {
  ggml_context_ptr context{ggml_init({64 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true})};
  ggml_tensor* matrix(std::int64_t width, std::int64_t rows, ggml_type type = GGML_TYPE_F32) {
    return ggml_new_tensor_2d(context.get(), type, width, rows);
  }
};

}  // namespace

TEST_CASE("sim: a split weight is on each device's own accounts, by its rows, and its product has the bits of one device") {
  auto a = sim("a"), b = sim("b");
  REQUIRE(a->row_split());
  CHECK(a->row_split()->family == b->row_split()->family);
  CHECK(a->row_split()->card < b->row_split()->card);
  const std::vector<RowShare> shares{{a.get(), 0.25f}, {b.get(), 0.75f}};
  const std::vector<float> parts{0.25f, 0.75f};
  Weights w;
  ggml_tensor* one = w.matrix(512, 256);
  ggml_tensor* two = w.matrix(64, 160, GGML_TYPE_F16);
  ggml_tensor* const both[] = {one, two};
  {
    auto buffer = a->allocate_split(both, shares);
    REQUIRE_MESSAGE(buffer, buffer.error().message);
    const Bytes on_a = split_size(GGML_TYPE_F32, 512, 64) + split_size(GGML_TYPE_F16, 64, 32);
    const Bytes on_b = split_size(GGML_TYPE_F32, 512, 192) + split_size(GGML_TYPE_F16, 64, 128);
    CHECK(a->high_water() == on_a);
    CHECK(b->high_water() == on_b);
    CHECK(on_a <= split_bound(GGML_TYPE_F32, 512, 256, parts)[0] + split_bound(GGML_TYPE_F16, 64, 160, parts)[0]);
    CHECK(on_b <= split_bound(GGML_TYPE_F32, 512, 256, parts)[1] + split_bound(GGML_TYPE_F16, 64, 160, parts)[1]);
    CHECK(a->live_buffers() == 1);
    CHECK(b->live_buffers() == 1);

    std::vector<float> values(512 * 256), x(512);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251) / 251.0f - 0.5f;
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) - 8;
    const auto run = [&](SimDevice& device, ggml_tensor* weight) {
      ggml_tensor* in = ggml_new_tensor_2d(w.context.get(), GGML_TYPE_F32, 512, 1);
      ggml_tensor* out = ggml_mul_mat(w.context.get(), weight, in);
      auto memory = device.allocate(16 * KiB).value();
      auto* base = static_cast<std::byte*>(ggml_backend_buffer_get_base(memory.get()));
      ggml_backend_tensor_alloc(memory.get(), in, base);
      ggml_backend_tensor_alloc(memory.get(), out, base + 4096);
      REQUIRE(device.supports(out));
      REQUIRE(device.set(weight, 0, std::as_bytes(std::span(values)), 0, {}));
      REQUIRE(device.set(in, 0, std::as_bytes(std::span(x)), 0, {}));
      ggml_cgraph* graph = ggml_new_graph_custom(w.context.get(), 8, false);
      ggml_build_forward_expand(graph, out);
      REQUIRE(device.compute(graph, 0, {}));
      std::vector<float> result(256);
      REQUIRE(device.get(out, 0, std::as_writable_bytes(std::span(result)), 0));
      return result;
    };
    const auto split = run(*a, one);
    ggml_tensor* whole = w.matrix(512, 256);
    auto alone = b->allocate(512 * KiB).value();
    ggml_backend_tensor_alloc(alone.get(), whole, ggml_backend_buffer_get_base(alone.get()));
    CHECK(split == run(*b, whole));
  }
  CHECK(a->live_buffers() == 0);
  CHECK(b->live_buffers() == 0);
}

TEST_CASE("sim: products alone read a split weight, and not a device that has no row of it") {
  auto a = sim("a"), b = sim("b");
  const auto asks = [&](float share, std::int64_t rows, bool product) {
    const std::vector<RowShare> shares{{a.get(), share}, {b.get(), 1 - share}};
    auto stands_for = a->allocate_split({}, shares);
    REQUIRE(stands_for);
    Weights w;
    ggml_tensor* weight = w.matrix(64, rows);
    weight->buffer = stands_for->get();
    ggml_tensor* other = w.matrix(64, product ? 2 : rows);
    const bool yes =
        a->supports(product ? ggml_mul_mat(w.context.get(), weight, other) : ggml_add(w.context.get(), other, weight));
    CHECK(a->high_water() + b->high_water() == 0);
    CHECK(a->live_buffers() == 0);
    return yes;
  };
  CHECK(asks(0.5f, 256, true));
  CHECK_FALSE(asks(0.5f, 256, false));
  CHECK_FALSE(asks(0.1f, 256, true));
  CHECK(asks(0.1f, 512, true));
}

TEST_CASE("sim: where one device refuses its part nothing is taken of any; who has not the option is refused") {
  for (const bool peer : {false, true}) {
    CAPTURE(peer);
    auto a = sim("a", 64 * MiB, peer ? 0 : 1), b = sim("b", 64 * MiB, peer ? 1 : 0);
    const std::vector<RowShare> shares{{a.get(), 0.5f}, {b.get(), 0.5f}};
    Weights w;
    ggml_tensor* const weight = w.matrix(64, 256);
    const auto refused = a->allocate_split({&weight, 1}, shares);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::device_oom);
    CHECK(a->live_buffers() + b->live_buffers() == 0);
    CHECK(weight->buffer == nullptr);
    CHECK(a->allocate_split({&weight, 1}, shares));
  }
  auto a = sim("a", 64 * MiB), small = sim("small", 20 * KiB);
  const std::vector<RowShare> shares{{a.get(), 0.5f}, {small.get(), 0.5f}};
  Weights w;
  ggml_tensor* const weight = w.matrix(64, 256);
  CHECK(a->allocate_split({&weight, 1}, shares).error().code == Code::device_oom);  // 33.75 KiB with padding
  auto plain = SimDevice::open({.label = "plain", .threads = 1}).value();
  CHECK_FALSE(plain->row_split());
  const std::vector<RowShare> with_plain{{a.get(), 0.5f}, {plain.get(), 0.5f}};
  CHECK(a->allocate_split({&weight, 1}, with_plain).error().code == Code::unsupported);
  CHECK(plain->allocate_split({&weight, 1}, with_plain).error().code == Code::unsupported);
}
