#include "nn/norm.h"

namespace sluice {

LayerNorm LayerNorm::declare(BlockDef& def, const std::string& name, std::int64_t channels, float eps) {
  LayerNorm norm;
  norm.w = def.weight(name + ".weight", {channels}, WeightRole::vector);
  norm.b = def.weight(name + ".bias", {channels}, WeightRole::vector);
  norm.eps = eps;
  def.reach({Reach::pointwise});
  return norm;
}

ggml_tensor* LayerNorm::operator()(GraphBuilder& g, ggml_tensor* x) const {
  ggml_context* c = g.context();
  return ggml_add(c, ggml_mul(c, ggml_norm(c, x, eps), g.weight(w)), g.weight(b));
}

GroupNorm GroupNorm::declare(BlockDef& def, const std::string& name, std::int64_t channels, float eps, int groups) {
  GroupNorm norm;
  norm.w = def.weight(name + ".weight", {channels}, WeightRole::vector);
  norm.b = def.weight(name + ".bias", {channels}, WeightRole::vector);
  norm.groups = groups;
  norm.eps = eps;
  def.reach({Reach::frame_statistics});
  return norm;
}

ggml_tensor* GroupNorm::operator()(GraphBuilder& g, ggml_tensor* x) const {
  ggml_context* c = g.context();
  const auto per_channel = [&](WeightRef ref) { return ggml_reshape_4d(c, g.weight(ref), 1, 1, x->ne[2], 1); };
  ggml_tensor* y = ggml_group_norm(c, x, groups, eps);
  return ggml_add(c, ggml_mul(c, y, per_channel(w)), per_channel(b));
}

}  // namespace sluice
