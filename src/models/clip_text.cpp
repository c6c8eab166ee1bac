#include "models/clip_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "nn/activation.h"
#include "nn/attention.h"
#include "nn/linear.h"
#include "nn/norm.h"

namespace sluice {
namespace {

Value append_embedding(Model& model, const ClipTextConfig& c, Value embedded) {
  BlockDef def(model, "embeddings");
  def.reads({embedded});
  const WeightRef table =
      def.weight("text_model.embeddings.position_embedding.weight", {c.hidden, c.positions}, WeightRole::dense);
  const Value out = def.writes();
  def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors {
    ggml_tensor* positions = g.weight(table);
    if (in[0]->ne[1] < positions->ne[1]) {
      positions = ggml_view_2d(g.context(), positions, positions->ne[0], in[0]->ne[1], positions->nb[1], 0);
    }
    return {ggml_add(g.context(), in[0], positions)};
  });
  return out;
}

Value append_attention(Model& model, const ClipTextConfig& c, const std::string& layer, Value x) {
  BlockDef def(model, layer + "self_attn");
  def.reads({x});
  const auto norm = LayerNorm::declare(def, layer + "layer_norm1", c.hidden);
  const auto q = Linear::declare(def, layer + "self_attn.q_proj", c.hidden, c.hidden);
  const auto k = Linear::declare(def, layer + "self_attn.k_proj", c.hidden, c.hidden);
  const auto v = Linear::declare(def, layer + "self_attn.v_proj", c.hidden, c.hidden);
  const auto out = Linear::declare(def, layer + "self_attn.out_proj", c.hidden, c.hidden);
  def.reach({Reach::frame_attention});
  const Value y = def.writes();
  def.finish([=, heads = c.heads](GraphBuilder& g, const Tensors& in) -> Tensors {
    ggml_tensor* h = norm(g, in[0]);
    return {ggml_add(g.context(), in[0], out(g, attention(g, q(g, h), k(g, h), v(g, h), heads, true)))};
  });
  return y;
}

Value append_mlp(Model& model, const ClipTextConfig& c, const std::string& layer, Value x) {
  BlockDef def(model, layer + "mlp");
  def.reads({x});
  const auto norm = LayerNorm::declare(def, layer + "layer_norm2", c.hidden);
  const auto fc1 = Linear::declare(def, layer + "mlp.fc1", c.hidden, c.intermediate);
  const auto fc2 = Linear::declare(def, layer + "mlp.fc2", c.intermediate, c.hidden);
  const Value y = def.writes();
  def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors {
    return {ggml_add(g.context(), in[0], fc2(g, quick_gelu(g, fc1(g, norm(g, in[0])))))};
  });
  return y;
}

}  // namespace

Result<ClipTextConfig> read_clip_text_config(const Names& names) {
  ClipTextConfig c;
  SLUICE_ASSIGN(c.hidden, names.dimension({"text_model.final_layer_norm.weight", "text_model.final_layer_norm.bias"}, 0));
  SLUICE_ASSIGN(c.positions, names.dimension({"text_model.embeddings.position_embedding.weight"}, 1));
  SLUICE_ASSIGN(c.vocabulary, names.dimension({kClipTokenTable}, 1));
  SLUICE_ASSIGN(c.intermediate,
                names.dimension({"text_model.encoder.layers.0.mlp.fc1.bias", "text_model.encoder.layers.0.mlp.fc1.weight"}, 0));
  if (names.find("text_projection.weight")) {
    SLUICE_ASSIGN(c.projection, names.dimension({"text_projection.weight"}, 1));
  }
  c.layers = names.count("text_model.encoder.layers.");
  if (c.hidden % 64 != 0)
    return fail(Code::unsupported, fmt::format("CLIP text encoder of width {}: not a multiple of 64", c.hidden));
  c.heads = static_cast<int>(c.hidden / 64);
  return c;
}

Result<ClipText> clip_text(const ClipTextConfig& c, const ClipTextOutputs& wanted) {
  const bool skipped = wanted.skipped || wanted.skipped_ln, last = wanted.last_hidden || wanted.projected;
  if (!skipped && !last) return fail(Code::invalid_argument, "a text encoder without outputs was asked for");
  if (skipped && (wanted.skip < 0 || wanted.skip >= c.layers)) {
    return fail(Code::invalid_argument, fmt::format("cannot leave out {} of the text encoder's {} layers: clip skip is 1 to {}",
                                                    wanted.skip, c.layers, c.layers));
  }
  if (wanted.projected && c.projection == 0)
    return fail(Code::invalid_argument, "the text encoder has no text_projection.weight");

  ClipText text;
  Model& m = text.model;
  m.name = "text";
  text.embedded = m.add_input("embedded", Refresh::every_sweep);
  Value x = append_embedding(m, c, text.embedded), at_skip = x;
  const int depth = last ? c.layers : c.layers - wanted.skip;
  for (int i = 0; i < depth; ++i) {
    const std::string layer = fmt::format("text_model.encoder.layers.{}.", i);
    x = append_mlp(m, c, layer, append_attention(m, c, layer, x));
    if (i + 1 == c.layers - wanted.skip) at_skip = x;
  }
  if (wanted.skipped) m.outputs.push_back(*(text.skipped = at_skip));

  // Both uses of the final layer norm share a block, since a weight belongs to one block.
  if (last || wanted.skipped_ln) {
    BlockDef def(m, "final_layer_norm");
    std::vector<Value> from;
    if (last) from.push_back(x);
    if (wanted.skipped_ln) from.push_back(at_skip);
    def.reads(from);
    const auto norm = LayerNorm::declare(def, "text_model.final_layer_norm", c.hidden);
    if (last) text.last_hidden = def.writes();
    if (wanted.skipped_ln) text.skipped_ln = def.writes();
    def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors {
      Tensors out;
      for (ggml_tensor* t : in) out.push_back(norm(g, t));
      return out;
    });
  }
  if (wanted.projected) {
    BlockDef def(m, "text_projection");
    def.reads({*text.last_hidden});
    const auto project = Linear::declare(def, "text_projection", c.hidden, c.projection, false);
    text.projected = def.writes();
    def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {project(g, in[0])}; });
    m.outputs.push_back(*text.projected);
  }
  if (wanted.skipped_ln) m.outputs.push_back(*text.skipped_ln);
  if (wanted.last_hidden) {
    m.outputs.push_back(*text.last_hidden);
  } else {
    text.last_hidden.reset();
  }
  return text;
}

std::size_t clip_pooled_position(std::span<const std::int32_t> ids, std::int32_t end_token) {
  const auto at = std::find(ids.begin(), ids.end(), end_token);
  return at == ids.end() ? 0 : static_cast<std::size_t>(at - ids.begin());
}

}  // namespace sluice
