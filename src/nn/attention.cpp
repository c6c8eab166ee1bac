#include "nn/attention.h"

#include <algorithm>
#include <cmath>

#include "nn/product.h"

namespace sluice {
namespace {

/// [d, Tq, H] from contiguous q [d, Tq, H], k [d, Tk, H], v [Tk, d, H].
ggml_tensor* attend(ggml_context* c, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, float scale, bool causal) {
  ggml_tensor* scores = product(c, k, q);
  if (causal) scores = ggml_diag_mask_inf(c, scores, 0);
  return product(c, v, ggml_soft_max_ext(c, scores, nullptr, scale, 0.0f));
}

/// Joins pieces along the queries, halves first, so that each row is copied log2(pieces) times.
ggml_tensor* join(ggml_context* c, ggml_tensor** pieces, std::size_t count) {
  if (count == 1) return pieces[0];
  const std::size_t half = count / 2;
  return ggml_concat(c, join(c, pieces, half), join(c, pieces + half, count - half), 1);
}

}  // namespace

ggml_tensor* attention(GraphBuilder& g, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, int heads, bool causal) {
  ggml_context* c = g.context();
  const std::int64_t channels = q->ne[0], d = channels / heads, queries = q->ne[1], keys = k->ne[1];
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  const auto split = [&](ggml_tensor* x) { return ggml_reshape_3d(c, x, d, heads, x->ne[1]); };
  const Bytes row = static_cast<Bytes>(keys) * static_cast<Bytes>(heads) * sizeof(float);
  // ggml splits the keys of a single query between threads, so its bits would depend on their number; one row is small anyway.
  const bool whole = causal || queries == 1 || row * static_cast<Bytes>(queries) <= g.variants().score_limit;
  q = ggml_cont(c, ggml_permute(c, split(q), 0, 2, 1, 3));
  k = ggml_cont(c, ggml_permute(c, split(k), 0, 2, 1, 3));
  if (!whole && g.variants().flash) {
    v = ggml_cont(c, ggml_permute(c, split(v), 0, 2, 1, 3));
    ggml_tensor* out = ggml_flash_attn_ext(c, q, k, v, nullptr, scale, 0.0f, 0.0f);  // [d, heads, queries]
    ggml_flash_attn_ext_set_prec(out, GGML_PREC_F32);
    return ggml_reshape_2d(c, out, channels, queries);
  }
  v = ggml_cont(c, ggml_permute(c, split(v), 1, 2, 0, 3));
  const std::int64_t step = std::clamp<std::int64_t>(static_cast<std::int64_t>(g.variants().score_limit / row), 1, queries);
  ggml_tensor* out = nullptr;
  if (whole || step == queries) {
    out = attend(c, q, k, v, scale, causal);
  } else {
    std::vector<ggml_tensor*> pieces;
    for (std::int64_t first = 0; first < queries; first += step) {
      const std::int64_t count = std::min(step, queries - first);
      ggml_tensor* part = ggml_view_3d(c, q, d, count, heads, q->nb[1], q->nb[2], static_cast<std::size_t>(first) * q->nb[1]);
      pieces.push_back(attend(c, ggml_cont(c, part), k, v, scale, false));
    }
    out = join(c, pieces.data(), pieces.size());
  }
  return ggml_reshape_2d(c, ggml_cont(c, ggml_permute(c, out, 0, 2, 1, 3)), channels, queries);
}

}  // namespace sluice
