#include "nn/resnet.h"

#include "nn/activation.h"

namespace sluice {

Resnet Resnet::declare(BlockDef& def, const std::string& prefix, const ResnetNames& names, std::int64_t in, std::int64_t out,
                       std::int64_t embedding) {
  Resnet resnet;
  resnet.norm1 = GroupNorm::declare(def, prefix + names.norm1, in, names.eps);
  resnet.conv1 = Conv2d::declare(def, prefix + names.conv1, in, out, 3);
  if (embedding > 0) resnet.embed = Linear::declare(def, prefix + names.embedding, embedding, out);
  resnet.norm2 = GroupNorm::declare(def, prefix + names.norm2, out, names.eps);
  resnet.conv2 = Conv2d::declare(def, prefix + names.conv2, out, out, 3);
  if (in != out) resnet.shortcut = Conv2d::declare(def, prefix + names.shortcut, in, out, 1);
  return resnet;
}

ggml_tensor* Resnet::operator()(GraphBuilder& g, ggml_tensor* x, ggml_tensor* e) const {
  ggml_context* c = g.context();
  ggml_tensor* h = conv1(g, silu(g, norm1(g, x)));
  if (embed.w) h = ggml_add(c, h, ggml_reshape_4d(c, embed(g, e), 1, 1, h->ne[2], 1));
  h = conv2(g, silu(g, norm2(g, h)));
  return ggml_add(c, shortcut.w ? shortcut(g, x) : x, h);
}

}  // namespace sluice
