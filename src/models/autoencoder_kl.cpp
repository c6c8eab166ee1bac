#include "models/autoencoder_kl.h"

#include <algorithm>

#include <fmt/format.h>

#include "nn/activation.h"
#include "nn/attention.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/resample.h"
#include "nn/resnet.h"
#include "nn/tokens.h"

namespace sluice {
namespace {

constexpr float kEps = 1e-6f;
const ResnetNames kResnetNames{"norm1", "conv1", "", "norm2", "conv2", "nin_shortcut", kEps};

/// `side` is "decoder.up." or "encoder.down.".
Result<AutoencoderHalf> read_half(const Names& names, const std::string& side) {
  AutoencoderHalf half;
  const int levels = names.count(side);
  if (levels < 1 || levels > 16) {
    return fail(Code::unsupported, fmt::format("{}{}: {} levels; an autoencoder has 1 to 16", names.prefix(), side, levels));
  }
  for (int i = 0; i < levels; ++i) {
    AutoencoderHalf::Level level;
    const std::string at = fmt::format("{}{}.block.", side, i);
    level.blocks = std::max(1, names.count(at));
    SLUICE_ASSIGN(level.channels, names.dimension({at + "0.conv1.bias", at + "0.conv2.bias", at + "0.norm2.weight"}, 0));
    half.levels.push_back(level);
  }
  return half;
}

Status check_widths(const AutoencoderHalf& half) {
  const auto check = [](std::int64_t channels) -> Status {
    if (channels % 32 == 0) return {};
    return fail(Code::unsupported, fmt::format("an autoencoder of {} channels: they do not form 32 groups", channels));
  };
  SLUICE_TRY(check(half.narrow));
  SLUICE_TRY(check(half.wide));
  for (const auto& level : half.levels) SLUICE_TRY(check(level.channels));
  return {};
}

template <typename Op>
Value append(Model& model, const std::string& name, Value x, const Op& declare) {
  BlockDef def(model, name);
  def.reads({x});
  const auto op = declare(def);
  const Value out = def.writes();
  def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {op(g, in[0])}; });
  return out;
}

Value append_resnet(Model& model, const std::string& name, Value x, std::int64_t in_channels, std::int64_t out_channels) {
  BlockDef def(model, name);
  def.reads({x});
  const auto res = Resnet::declare(def, name + ".", kResnetNames, in_channels, out_channels, 0);
  const Value out = def.writes();
  def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {res(g, in[0], nullptr)}; });
  return out;
}

/// One head as wide as the frame; its matrices are stored as 1x1 kernels.
Value append_attention(Model& model, const std::string& name, Value x, std::int64_t channels) {
  BlockDef def(model, name);
  def.reads({x});
  const auto norm = GroupNorm::declare(def, name + ".norm", channels, kEps);
  const auto q = Linear::declare(def, name + ".q", channels, channels);
  const auto k = Linear::declare(def, name + ".k", channels, channels);
  const auto v = Linear::declare(def, name + ".v", channels, channels);
  def.reach({Reach::frame_attention});
  const auto proj = Linear::declare(def, name + ".proj_out", channels, channels);
  const Value out = def.writes();
  def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors {
    ggml_tensor* h = frame_to_tokens(g, norm(g, in[0]));
    h = proj(g, attention(g, q(g, h), k(g, h), v(g, h), 1));
    return {ggml_add(g.context(), in[0], tokens_to_frame(g, h, in[0]->ne[0], in[0]->ne[1]))};
  });
  return out;
}

Value append_middle(Model& model, const std::string& name, Value x, std::int64_t channels) {
  x = append_resnet(model, name + ".block_1", x, channels, channels);
  x = append_attention(model, name + ".attn_1", x, channels);
  return append_resnet(model, name + ".block_2", x, channels, channels);
}

}  // namespace

Result<AutoencoderKlConfig> read_autoencoder_kl_config(const Names& names) {
  AutoencoderKlConfig c;
  c.quant_convs = names.any(kAutoencoderKlPostQuant) || names.any(kAutoencoderKlQuant);
  SLUICE_ASSIGN(c.z_channels, names.dimension({"decoder.conv_in.weight"}, 2));
  c.latent_channels = c.z_channels;
  if (c.quant_convs) {
    SLUICE_ASSIGN(c.latent_channels, names.dimension({"post_quant_conv.weight"}, 2));
  }
  SLUICE_ASSIGN(c.image_channels, names.dimension({"decoder.conv_out.bias"}, 0));
  SLUICE_ASSIGN(c.decoder, read_half(names, "decoder.up."));
  SLUICE_ASSIGN(c.decoder.narrow, names.dimension({"decoder.conv_in.bias"}, 0));
  c.decoder.wide = c.decoder.levels.front().channels;
  SLUICE_TRY(check_widths(c.decoder));
  if (names.any(kAutoencoderKlEncoder)) {
    SLUICE_ASSIGN(auto encoder, read_half(names, "encoder.down."));
    SLUICE_ASSIGN(encoder.wide, names.dimension({"encoder.conv_in.bias"}, 0));
    encoder.narrow = encoder.levels.back().channels;
    SLUICE_TRY(check_widths(encoder));
    if (encoder.levels.size() != c.decoder.levels.size()) {
      return fail(Code::unsupported, fmt::format("an autoencoder whose encoder has {} levels and whose decoder has {}",
                                                 encoder.levels.size(), c.decoder.levels.size()));
    }
    c.encoder = std::move(encoder);
  }
  return c;
}

AutoencoderDecoder autoencoder_kl_decoder(const AutoencoderKlConfig& c) {
  AutoencoderDecoder decoder;
  Model& m = decoder.model;
  m.name = "decoder";
  decoder.latent = m.add_input("latent", Refresh::every_sweep);

  BlockDef first(m, "decoder.conv_in");
  first.reads({decoder.latent});
  Conv2d post_quant;
  if (c.quant_convs) post_quant = Conv2d::declare(first, "post_quant_conv", c.latent_channels, c.z_channels, 1);
  const auto conv_in = Conv2d::declare(first, "decoder.conv_in", c.z_channels, c.decoder.narrow, 3);
  Value h = first.writes();
  first.finish(
      [=](GraphBuilder& g, const Tensors& in) -> Tensors { return {conv_in(g, post_quant.w ? post_quant(g, in[0]) : in[0])}; });

  h = append_middle(m, "decoder.mid", h, c.decoder.narrow);
  std::int64_t width = c.decoder.narrow;
  for (std::size_t i = c.decoder.levels.size(); i-- > 0;) {
    const auto& level = c.decoder.levels[i];
    for (int j = 0; j < level.blocks; ++j) {
      h = append_resnet(m, fmt::format("decoder.up.{}.block.{}", i, j), h, width, level.channels);
      width = level.channels;
    }
    if (i > 0) {
      const std::string name = fmt::format("decoder.up.{}.upsample.conv", i);
      h = append(m, name, h, [&](BlockDef& def) { return Upsample::declare(def, name, width); });
    }
  }

  BlockDef last(m, "decoder.conv_out");
  last.reads({h});
  const auto norm = GroupNorm::declare(last, "decoder.norm_out", width, kEps);
  const auto conv_out = Conv2d::declare(last, "decoder.conv_out", width, c.image_channels, 3);
  decoder.image = last.writes();
  last.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {conv_out(g, silu(g, norm(g, in[0])))}; });
  m.outputs = {decoder.image};
  return decoder;
}

AutoencoderEncoder autoencoder_kl_encoder(const AutoencoderKlConfig& c) {
  AutoencoderEncoder encoder;
  const AutoencoderHalf& half = *c.encoder;
  Model& m = encoder.model;
  m.name = "encoder";
  encoder.image = m.add_input("image", Refresh::every_sweep);
  Value h = append(m, "encoder.conv_in", encoder.image,
                   [&](BlockDef& def) { return Conv2d::declare(def, "encoder.conv_in", c.image_channels, half.wide, 3); });
  std::int64_t width = half.wide;
  for (std::size_t i = 0; i < half.levels.size(); ++i) {
    for (int j = 0; j < half.levels[i].blocks; ++j) {
      h = append_resnet(m, fmt::format("encoder.down.{}.block.{}", i, j), h, width, half.levels[i].channels);
      width = half.levels[i].channels;
    }
    if (i + 1 < half.levels.size()) {
      const std::string name = fmt::format("encoder.down.{}.downsample.conv", i);
      h = append(m, name, h, [&](BlockDef& def) { return Downsample::declare(def, name, width, true); });
    }
  }
  h = append_middle(m, "encoder.mid", h, half.narrow);

  BlockDef last(m, "encoder.conv_out");
  last.reads({h});
  const auto norm = GroupNorm::declare(last, "encoder.norm_out", half.narrow, kEps);
  const auto conv_out = Conv2d::declare(last, "encoder.conv_out", half.narrow, 2 * c.z_channels, 3);
  Conv2d quant;
  if (c.quant_convs) quant = Conv2d::declare(last, "quant_conv", 2 * c.z_channels, 2 * c.latent_channels, 1);
  encoder.moments = last.writes();
  last.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors {
    ggml_tensor* moments = conv_out(g, silu(g, norm(g, in[0])));
    return {quant.w ? quant(g, moments) : moments};
  });
  m.outputs = {encoder.moments};
  return encoder;
}

void split_moments(std::span<const float> moments, std::span<float> mean, std::span<float> log_variance) {
  const std::size_t half = moments.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    mean[i] = moments[i];
    log_variance[i] = std::clamp(moments[half + i], -30.0f, 20.0f);
  }
}

}  // namespace sluice
