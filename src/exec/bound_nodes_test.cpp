#include "exec/bound_nodes.h"

#include <doctest/doctest.h>

#include "device/arena.h"
#include "exec/test_null_device.h"

using namespace sluice;

namespace {

/// Like a backend that knows weights only in its own buffers, and says so only when it sees one.
class ChoosyDevice final : public test::NullDevice {
 public:
  using NullDevice::NullDevice;
  ggml_backend_buffer_t own = nullptr;
  mutable int asked = 0;
  bool supports(const ggml_tensor* node) const override {
    ++asked;
    const ggml_tensor* weight = node->src[0];
    return !weight || !weight->buffer || weight->buffer == own;
  }
};

}  // namespace

TEST_CASE("bound nodes are asked with their buffers; views are not, and what has no memory is no question") {
  ChoosyDevice device(64, MiB);
  auto arena = Arena::open(device, MiB).value();
  const ggml_context_ptr context{
      ggml_init({16 * ggml_tensor_overhead() + ggml_graph_overhead_custom(16, false), nullptr, true})};
  ggml_context* c = context.get();
  ggml_tensor* weight = ggml_new_tensor_2d(c, GGML_TYPE_F16, 32, 32);
  ggml_tensor* input = ggml_new_tensor_2d(c, GGML_TYPE_F32, 32, 4);
  ggml_tensor* product = ggml_mul_mat(c, weight, input);
  ggml_tensor* view = ggml_reshape_1d(c, product, 128);
  ggml_tensor* sum = ggml_scale(c, view, 2);
  ggml_cgraph* graph = ggml_new_graph_custom(c, 16, false);
  ggml_build_forward_expand(graph, sum);

  const auto unbound = check_bound_nodes(device, graph);
  REQUIRE_FALSE(unbound);
  CHECK(unbound.error().code == Code::invalid_argument);
  CHECK(device.asked == 0);

  const Bytes step = 64 * KiB;
  REQUIRE(arena.bind(input, 0));
  REQUIRE(arena.bind(product, step));
  REQUIRE(arena.bind(sum, 2 * step));
  REQUIRE(ggml_backend_view_init(view) == GGML_STATUS_SUCCESS);
  CHECK(check_bound_nodes(device, graph).error().code == Code::invalid_argument);  // the weight has no place yet

  REQUIRE(arena.bind(weight, 3 * step));
  device.own = weight->buffer;
  device.asked = 0;
  CHECK(check_bound_nodes(device, graph));
  CHECK(device.asked == 2);  // the product and the scaling

  device.own = nullptr;
  const auto foreign = check_bound_nodes(device, graph);
  REQUIRE_FALSE(foreign);
  CHECK(foreign.error().code == Code::unsupported);
  for (const char* part : {"null cannot run", "MUL_MAT", "f16", "buffer of"})
    CHECK_MESSAGE(foreign.error().message.find(part) != std::string::npos, foreign.error().message);
}
