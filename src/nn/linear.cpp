#include "nn/linear.h"

#include "nn/product.h"

namespace sluice {

Linear Linear::declare(BlockDef& def, const std::string& name, std::int64_t in, std::int64_t out, bool bias) {
  Linear linear;
  linear.w = def.weight(name + ".weight", {in, out}, WeightRole::matrix);
  if (bias) linear.b = def.weight(name + ".bias", {out}, WeightRole::vector);
  def.reach({Reach::pointwise});
  return linear;
}

ggml_tensor* Linear::operator()(GraphBuilder& g, ggml_tensor* x) const {
  ggml_tensor* y = product(g.context(), g.weight(w), x);
  return b ? ggml_add(g.context(), y, g.weight(b)) : y;
}

}  // namespace sluice
