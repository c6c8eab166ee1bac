#include "device/graph_cost.h"

#include <cmath>

namespace sluice {
namespace {

double elements(const ggml_tensor* t) { return static_cast<double>(ggml_nelements(t)); }
double extent(const ggml_tensor* t, int axis) { return static_cast<double>(t->ne[axis]); }

double node_flops(const ggml_tensor* node) {
  const ggml_tensor *a = node->src[0], *b = node->src[1];
  switch (node->op) {
    case GGML_OP_MUL_MAT:     // a [K, M], b [K, N]: M × N sums of K products
    case GGML_OP_MUL_MAT_ID:  // the same with rows of chosen experts
      return 2 * elements(node) * extent(a, 0);
    case GGML_OP_OUT_PROD:  // a [M, K], b [N, K]
      return 2 * elements(node) * extent(a, 1);
    case GGML_OP_CONV_2D:  // a [KW, KH, IC, OC]
      return 2 * elements(node) * extent(a, 0) * extent(a, 1) * extent(a, 2);
    case GGML_OP_CONV_2D_DW:  // a [KW, KH, 1, C]
      return 2 * elements(node) * extent(a, 0) * extent(a, 1);
    case GGML_OP_CONV_3D: {
      // a [KW, KH, KD, IC·OC], b [W, H, D, IC·N], node [OW, OH, OD, OC·N]: IC² is the product of the first two over the third.
      const double channels = std::sqrt(extent(a, 3) * extent(b, 3) / extent(node, 3));
      return 2 * elements(node) * extent(a, 0) * extent(a, 1) * extent(a, 2) * channels;
    }
    case GGML_OP_CONV_TRANSPOSE_1D:  // a [K, OC, IC], b [L, IC]: each input element meets K × OC weights
      return 2 * elements(b) * extent(a, 0) * extent(a, 1);
    case GGML_OP_CONV_TRANSPOSE_2D:  // a [KW, KH, OC, IC], b [W, H, IC, N]
      return 2 * elements(b) * extent(a, 0) * extent(a, 1) * extent(a, 2);
    case GGML_OP_FLASH_ATTN_EXT: {  // a = q [DK, Q, heads, N], b = k [DK, KV, …], src[2] = v [DV, KV, …]
      const double rows = extent(a, 1) * extent(a, 2) * extent(a, 3);
      return 2 * rows * extent(b, 1) * (extent(a, 0) + extent(node->src[2], 0));
    }
    default: return 0;
  }
}

}  // namespace

double graph_flops(const ggml_cgraph* graph) {
  // ggml's accessors ask for a mutable graph but only read.
  auto* readable = const_cast<ggml_cgraph*>(graph);
  double flops = 0;
  for (int i = 0; i < ggml_graph_n_nodes(readable); ++i) flops += node_flops(ggml_graph_node(readable, i));
  return flops;
}

}  // namespace sluice
