#include "nn/conv2d.h"

#include "nn/product.h"

namespace sluice {

Conv2d Conv2d::declare(BlockDef& def, const std::string& name, std::int64_t in, std::int64_t out, int kernel, int stride,
                       int padding) {
  Conv2d conv;
  conv.w = def.weight(name + ".weight", {kernel, kernel, in, out}, WeightRole::kernel);
  conv.b = def.weight(name + ".bias", {out}, WeightRole::vector);
  conv.stride = stride;
  conv.padding = padding;
  if (kernel == 1 && stride == 1) {
    def.reach({Reach::pointwise});
  } else {
    def.reach({Reach::local, kernel / 2, 1.0 / stride});
  }
  return conv;
}

ggml_tensor* Conv2d::operator()(GraphBuilder& g, ggml_tensor* x) const {
  ggml_context* c = g.context();
  ggml_tensor* kernel = g.weight(w);
  const auto extent = [&](int axis) { return (x->ne[axis] + 2 * padding - kernel->ne[axis]) / stride + 1; };
  const std::int64_t width = extent(0), height = extent(1), out = kernel->ne[3];
  const std::int64_t taps = kernel->ne[0] * kernel->ne[1] * kernel->ne[2];
  const Bytes unfolded = static_cast<Bytes>(taps * width * height) * ggml_type_size(kernel->type);

  ggml_tensor* y = nullptr;
  if (unfolded <= g.variants().im2col_limit) {
    ggml_tensor* columns = ggml_im2col(c, kernel, x, stride, stride, padding, padding, 1, 1, true, kernel->type);
    // One frame: pixels as rows give [W'H', out], which is the picture's own order.
    columns = ggml_reshape_2d(c, columns, taps, width * height);
    y = product(c, columns, ggml_reshape_2d(c, kernel, taps, out));
    y = ggml_reshape_4d(c, y, width, height, out, 1);
  } else {
    y = ggml_conv_2d_direct(c, kernel, x, stride, stride, padding, padding, 1, 1);
  }
  return ggml_add(c, y, ggml_reshape_4d(c, g.weight(b), 1, 1, out, 1));
}

}  // namespace sluice
