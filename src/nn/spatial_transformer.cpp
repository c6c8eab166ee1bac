#include "nn/spatial_transformer.h"

#include <fmt/format.h>

#include "nn/activation.h"
#include "nn/attention.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/tokens.h"

namespace sluice {
namespace {

/// x + to_out(attention(to_q(norm x), to_k(from), to_v(from))); `from` is the normed x itself where it is null.
struct ResidualAttention {
  LayerNorm norm;
  Linear q, k, v, out;
  int heads = 8;

  static ResidualAttention declare(BlockDef& def, const std::string& norm, const std::string& name, std::int64_t channels,
                                   std::int64_t from, int heads, Reach reach) {
    ResidualAttention a;
    a.norm = LayerNorm::declare(def, norm, channels);
    a.q = Linear::declare(def, name + ".to_q", channels, channels, false);
    a.k = Linear::declare(def, name + ".to_k", from, channels, false);
    a.v = Linear::declare(def, name + ".to_v", from, channels, false);
    a.out = Linear::declare(def, name + ".to_out.0", channels, channels);
    a.heads = heads;
    def.reach({reach});
    return a;
  }

  ggml_tensor* operator()(GraphBuilder& g, ggml_tensor* x, ggml_tensor* from) const {
    ggml_tensor* h = norm(g, x);
    if (!from) from = h;
    return ggml_add(g.context(), x, out(g, attention(g, q(g, h), k(g, from), v(g, from), heads)));
  }
};

Value append_attn1(Model& model, const SpatialTransformerSpec& s, const std::string& layer, Value x, bool first) {
  BlockDef def(model, layer + "attn1");
  def.reads({x});
  GroupNorm norm;
  Linear proj_in;
  if (first) {
    norm = GroupNorm::declare(def, s.name + ".norm", s.channels, 1e-6f);
    proj_in = Linear::declare(def, s.name + ".proj_in", s.channels, s.channels);
  }
  const auto attn = ResidualAttention::declare(def, layer + "norm1", layer + "attn1", s.channels, s.channels, s.heads,
                                               Reach::frame_attention);
  const Value out = def.writes();
  def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors {
    ggml_tensor* tokens = first ? proj_in(g, frame_to_tokens(g, norm(g, in[0]))) : in[0];
    return {attn(g, tokens, nullptr)};
  });
  return out;
}

Value append_attn2(Model& model, const SpatialTransformerSpec& s, const std::string& layer, Value tokens, Value context) {
  BlockDef def(model, layer + "attn2");
  def.reads({tokens, context});
  // Each pixel looks at the text alone, not at other pixels.
  const auto attn =
      ResidualAttention::declare(def, layer + "norm2", layer + "attn2", s.channels, s.context, s.heads, Reach::pointwise);
  const Value out = def.writes();
  def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {attn(g, in[0], in[1])}; });
  return out;
}

Value append_ff(Model& model, const SpatialTransformerSpec& s, const std::string& layer, Value tokens, Value frame, bool last) {
  BlockDef def(model, layer + "ff");
  def.reads(last ? std::vector<Value>{tokens, frame} : std::vector<Value>{tokens});
  const auto norm = LayerNorm::declare(def, layer + "norm3", s.channels);
  const auto expand = Linear::declare(def, layer + "ff.net.0.proj", s.channels, 8 * s.channels);
  const auto contract = Linear::declare(def, layer + "ff.net.2", 4 * s.channels, s.channels);
  Linear proj_out;
  if (last) proj_out = Linear::declare(def, s.name + ".proj_out", s.channels, s.channels);
  const Value out = def.writes();
  def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors {
    ggml_context* c = g.context();
    ggml_tensor* x = ggml_add(c, in[0], contract(g, geglu(g, expand(g, norm(g, in[0])))));
    if (!last) return {x};
    return {ggml_add(c, in[1], tokens_to_frame(g, proj_out(g, x), in[1]->ne[0], in[1]->ne[1]))};
  });
  return out;
}

}  // namespace

Value append_spatial_transformer(Model& model, const SpatialTransformerSpec& s, Value frame, Value context) {
  Value x = frame;
  for (int i = 0; i < s.depth; ++i) {
    const std::string layer = fmt::format("{}.transformer_blocks.{}.", s.name, i);
    x = append_attn1(model, s, layer, x, i == 0);
    x = append_attn2(model, s, layer, x, context);
    x = append_ff(model, s, layer, x, frame, i + 1 == s.depth);
  }
  return x;
}

}  // namespace sluice
