#include "nn/resample.h"

namespace sluice {

Upsample Upsample::declare(BlockDef& def, const std::string& name, std::int64_t channels) {
  def.reach({Reach::pointwise, 0, 2});
  return {Conv2d::declare(def, name, channels, channels, 3)};
}

ggml_tensor* Upsample::operator()(GraphBuilder& g, ggml_tensor* x) const {
  return conv(g, ggml_upscale(g.context(), x, 2, GGML_SCALE_MODE_NEAREST));
}

Downsample Downsample::declare(BlockDef& def, const std::string& name, std::int64_t channels, bool pad_right_bottom) {
  return {Conv2d::declare(def, name, channels, channels, 3, 2, pad_right_bottom ? 0 : 1), pad_right_bottom};
}

ggml_tensor* Downsample::operator()(GraphBuilder& g, ggml_tensor* x) const {
  return conv(g, pad_right_bottom ? ggml_pad(g.context(), x, 1, 1, 0, 0) : x);
}

}  // namespace sluice
