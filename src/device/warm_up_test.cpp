#include "device/warm_up.h"

#include <doctest/doctest.h>

#include "device/device.h"
#include "device/registry.h"
#include "device/test_graphs.h"
#include "ggml-cpp.h"

using namespace sluice;

namespace {

/// ids → rows of a table → product with a weight through a view: leaves of two types, a view, an operator that reads indices.
struct Lookup {
  Lookup() : context(ggml_init({.mem_size = 1 << 20, .mem_buffer = nullptr, .no_alloc = true})) {
    table = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 64, 8);
    ids = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, 6);
    weight = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 64, 16);
    ggml_tensor* rows = ggml_get_rows(context.get(), table, ids);
    ggml_tensor* some = ggml_view_2d(context.get(), rows, 64, 4, rows->nb[1], rows->nb[1]);
    out = ggml_mul_mat(context.get(), weight, some);
    graph = ggml_new_graph_custom(context.get(), 16, false);
    ggml_build_forward_expand(graph, out);
  }
  bool unbound() const {
    for (ggml_tensor* t = ggml_get_first_tensor(context.get()); t; t = ggml_get_next_tensor(context.get(), t))
      if (t->data || t->buffer || t->extra) return false;
    return true;
  }
  ggml_context_ptr context;
  ggml_tensor *table, *ids, *weight, *out;
  ggml_cgraph* graph;
};

ggml_backend_ptr cpu() {
  load_backends();
  return ggml_backend_ptr{ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)};
}

}  // namespace

TEST_CASE("warm_up: the graph runs and is as unbound as before, again and again") {
  const auto backend = cpu();
  REQUIRE(backend);
  const auto type = ggml_backend_get_default_buffer_type(backend.get());
  Lookup lookup;
  CHECK(warm_up_bytes(type, lookup.graph) >= ggml_nbytes(lookup.table) + ggml_nbytes(lookup.weight));
  CHECK(lookup.unbound());
  for (int i = 0; i < 2; ++i) {
    CHECK(warm_up(backend.get(), type, lookup.graph));
    CHECK(lookup.unbound());
  }
}

TEST_CASE("warm_up: a graph with memory is left alone, and works afterwards") {
  const auto backend = cpu();
  REQUIRE(backend);
  auto device = open_device("cpu:threads=1").value();
  TestProduct product(64, 32, 8);
  REQUIRE(warm_up(backend.get(), ggml_backend_get_default_buffer_type(backend.get()), product.graph()));
  auto arena = Arena::open(*device, product.bytes(*device)).value();
  product.bind(*device, arena);
  const auto refused = warm_up(backend.get(), ggml_backend_get_default_buffer_type(backend.get()), product.graph());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::invalid_argument);
  REQUIRE(device->compute(product.graph(), 0, CancelToken{}));
  CHECK(product.result(*device) == product.expected());
}

TEST_CASE("graph_signature: the same for the same work, another for another shape, type or operator") {
  const TestProduct a(64, 32, 8), same(64, 32, 8), wider(64, 32, 9), halves(64, 32, 8, GGML_TYPE_F16);
  CHECK(graph_signature(a.graph()) == graph_signature(same.graph()));
  CHECK(graph_signature(a.graph()) != graph_signature(wider.graph()));
  CHECK(graph_signature(a.graph()) != graph_signature(halves.graph()));
  const Lookup lookup;
  CHECK(graph_signature(a.graph()) != graph_signature(lookup.graph));
}

TEST_CASE("backend_now: the CPU's work buffer, to the byte, once it is there") {
  auto device = open_device("cpu:threads=1").value();
  CHECK(device->backend_now() == Bytes{0});
  TestProduct product(512, 64, 32, GGML_TYPE_Q8_0);
  ggml_cgraph* graphs[] = {product.graph()};
  const Bytes measured = device->measure_backend(graphs).value();
  auto arena = Arena::open(*device, product.bytes(*device)).value();
  product.bind(*device, arena);
  REQUIRE(device->compute(product.graph(), 0, CancelToken{}));
  CHECK(measured > 0);
  CHECK(device->backend_now() == measured);
}
