#include "device/graph_cost.h"

#include <doctest/doctest.h>

#include "ggml-cpp.h"

using namespace sluice;

namespace {

struct Graphs {
  ggml_context_ptr context{ggml_init({.mem_size = 1 << 20, .mem_buffer = nullptr, .no_alloc = true})};
  ggml_tensor* tensor(ggml_type type, std::int64_t a, std::int64_t b = 1, std::int64_t c = 1, std::int64_t d = 1) const {
    return ggml_new_tensor_4d(context.get(), type, a, b, c, d);
  }
  double flops(ggml_tensor* node) const {
    ggml_cgraph* graph = ggml_new_graph(context.get());
    ggml_build_forward_expand(graph, node);
    return graph_flops(graph);
  }
};

}  // namespace

TEST_CASE("graph_flops: counted by hand") {
  const Graphs g;
  ggml_context* c = g.context.get();
  const auto f32 = GGML_TYPE_F32, f16 = GGML_TYPE_F16;
  // [K 8, M 5] × [K 8, N 3], batch 2
  CHECK(g.flops(ggml_mul_mat(c, g.tensor(f32, 8, 5, 2), g.tensor(f32, 8, 3, 2))) == 2 * 8 * 5 * 3 * 2);
  // elementwise work counts nothing
  CHECK(g.flops(ggml_add(c, g.tensor(f32, 8, 5), g.tensor(f32, 8, 5))) == 0);
  // 3 × 3 kernel, 4 → 6 channels, 10 × 12 with padding 1, batch 2; by im2col it is the same product
  const double conv = 2.0 * 3 * 3 * 4 * 6 * 10 * 12 * 2;
  CHECK(g.flops(ggml_conv_2d_direct(c, g.tensor(f16, 3, 3, 4, 6), g.tensor(f32, 10, 12, 4, 2), 1, 1, 1, 1, 1, 1)) == conv);
  CHECK(g.flops(ggml_conv_2d(c, g.tensor(f16, 3, 3, 4, 6), g.tensor(f32, 10, 12, 4, 2), 1, 1, 1, 1, 1, 1)) == conv);
  CHECK(g.flops(ggml_conv_2d_dw_direct(c, g.tensor(f32, 3, 3, 1, 4), g.tensor(f32, 10, 12, 4, 2), 1, 1, 1, 1, 1, 1)) ==
        2.0 * 3 * 3 * 4 * 10 * 12 * 2);
  // stride 2 without padding: each of 5 × 6 input pixels meets 2 × 2 weights
  CHECK(g.flops(ggml_conv_transpose_2d_p0(c, g.tensor(f16, 2, 2, 6, 4), g.tensor(f32, 5, 6, 4, 1), 2)) ==
        2.0 * 2 * 2 * 4 * 6 * 5 * 6);
  // 3 × 3 × 3 kernel, 4 → 6 channels, 5 × 6 × 7 with padding 1
  CHECK(g.flops(ggml_conv_3d_direct(c, g.tensor(f16, 3, 3, 3, 4 * 6), g.tensor(f32, 5, 6, 7, 4), 1, 1, 1, 1, 1, 1, 1, 1, 1, 4,
                                    1, 6)) == doctest::Approx(2.0 * 27 * 4 * 6 * 5 * 6 * 7).epsilon(1e-12));
  // 16 wide heads, 7 queries, 9 keys, 3 heads, batch 2: q·k and p·v
  CHECK(g.flops(ggml_flash_attn_ext(c, g.tensor(f32, 16, 7, 3, 2), g.tensor(f16, 16, 9, 3, 2), g.tensor(f16, 16, 9, 3, 2),
                                    nullptr, 1, 0, 0)) == 2.0 * 7 * 9 * 3 * 2 * (16 + 16));
}
