#include "models/sd_unet.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "nn/activation.h"
#include "nn/resample.h"
#include "nn/resnet.h"
#include "nn/spatial_transformer.h"

namespace sluice {
namespace {

const ResnetNames kResnetNames{"in_layers.0",  "in_layers.2",     "emb_layers.1", "out_layers.0",
                               "out_layers.3", "skip_connection", 1e-5f};

Result<std::int64_t> resnet_channels(const Names& names, const std::string& at) {
  return names.dimension(
      {at + "in_layers.2.bias", at + "out_layers.3.bias", at + "emb_layers.1.bias", at + "out_layers.0.weight"}, 0);
}

/// Transformer layers at `at` (e.g. "input_blocks.1.1."); one if it is named at all, so that what is missing is found later.
int transformer_depth(const Names& names, const std::string& at) {
  if (!names.any(at)) return 0;
  return std::max(1, names.count(at + "transformer_blocks."));
}

Result<std::vector<UnetStep>> read_input_steps(const Names& names) {
  std::vector<UnetStep> steps;
  const int count = names.count("input_blocks.");
  for (int i = 0; i < count; ++i) {
    const std::string at = fmt::format("input_blocks.{}.", i);
    UnetStep step;
    if (i == 0) {
      step.resnet = false;
      SLUICE_ASSIGN(step.channels, names.dimension({at + "0.bias"}, 0));
    } else if (names.any(at + "0.op.")) {
      step.resnet = false;
      step.channels = steps.back().channels;
    } else {
      SLUICE_ASSIGN(step.channels, resnet_channels(names, at + "0."));
      step.depth = transformer_depth(names, at + "1.");
    }
    steps.push_back(step);
  }
  return steps;
}

Result<std::vector<UnetStep>> read_output_steps(const Names& names) {
  std::vector<UnetStep> steps;
  const int count = names.count("output_blocks.");
  for (int i = 0; i < count; ++i) {
    const std::string at = fmt::format("output_blocks.{}.", i);
    UnetStep step;
    SLUICE_ASSIGN(step.channels, resnet_channels(names, at + "0."));
    step.upsample = names.any(at + "1.conv.") || names.any(at + "2.conv.");
    if (!names.any(at + "1.conv.")) step.depth = transformer_depth(names, at + "1.");
    steps.push_back(step);
  }
  return steps;
}

/// Every width must fit the group norms and heads, and every skip must meet a frame of its own size.
Status check_structure(const SdUnetConfig& c) {
  const auto bad = [](const std::string& what) { return fail(Code::unsupported, "not a Stable Diffusion 1.x U-Net: " + what); };
  if (c.input.size() < 2 || c.input.size() != c.output.size()) {
    return bad(fmt::format("{} input blocks and {} output blocks", c.input.size(), c.output.size()));
  }
  if (c.model_channels % 2 != 0) return bad(fmt::format("time embedding of odd width {}", c.model_channels));
  int level = 0;
  std::vector<int> skip_levels;
  for (std::size_t i = 0; i < c.input.size(); ++i) {
    if (i > 0 && !c.input[i].resnet) ++level;
    skip_levels.push_back(level);
  }
  for (std::size_t i = 0; i < c.output.size(); ++i) {
    if (skip_levels.back() != level) return bad(fmt::format("output_blocks.{} meets a skip of another resolution", i));
    skip_levels.pop_back();
    if (c.output[i].upsample && --level < 0) return bad("more upsamplings than downsamplings");
  }
  if (level != 0) return bad("fewer upsamplings than downsamplings");
  if (level > 16 || skip_levels.size() > 4096) return bad("too deep");
  const auto check_width = [&](std::int64_t channels) -> Status {
    if (channels % 32 != 0) return bad(fmt::format("{} channels do not form 32 groups", channels));
    if (channels % c.heads != 0) return bad(fmt::format("{} channels do not form {} heads", channels, c.heads));
    return {};
  };
  for (const auto& step : c.input) SLUICE_TRY(check_width(step.channels));
  for (const auto& step : c.output) SLUICE_TRY(check_width(step.channels));
  return {};
}

struct Builder {
  const SdUnetConfig& c;
  SdUnet& unet;
  Value temb{};

  Value time_embed() {
    BlockDef def(unet.model, "time_embed");
    def.reads({unet.t_emb});
    const auto first = Linear::declare(def, "time_embed.0", c.model_channels, c.embedding);
    const auto second = Linear::declare(def, "time_embed.2", c.embedding, c.embedding);
    const Value out = def.writes();
    // Every residual block activates the embedding first: done once here.
    def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {silu(g, second(g, silu(g, first(g, in[0]))))}; });
    return out;
  }

  Value conv_in(Value x, std::int64_t channels) {
    BlockDef def(unet.model, "input_blocks.0.0");
    def.reads({x});
    const auto conv = Conv2d::declare(def, "input_blocks.0.0", c.in_channels, channels, 3);
    const Value out = def.writes();
    def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {conv(g, in[0])}; });
    return out;
  }

  Value resnet(const std::string& at, Value x, std::int64_t in_channels, std::int64_t out_channels) {
    BlockDef def(unet.model, at);
    def.reads({x, temb});
    const auto res = Resnet::declare(def, at + ".", kResnetNames, in_channels, out_channels, c.embedding);
    const Value out = def.writes();
    def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {res(g, in[0], in[1])}; });
    return out;
  }

  Value resnet_with_skip(const std::string& at, Value x, Value skip, std::int64_t in_channels, std::int64_t out_channels) {
    BlockDef def(unet.model, at);
    def.reads({x, skip, temb});
    const auto res = Resnet::declare(def, at + ".", kResnetNames, in_channels, out_channels, c.embedding);
    const Value out = def.writes();
    def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors {
      return {res(g, ggml_concat(g.context(), in[0], in[1], 2), in[2])};
    });
    return out;
  }

  Value transformer(const std::string& at, Value x, std::int64_t channels, int depth) {
    return append_spatial_transformer(unet.model, {at, channels, c.context, c.heads, depth}, x, unet.context);
  }

  template <typename Op>
  Value resample(const std::string& at, Value x, const Op& declare) {
    BlockDef def(unet.model, at);
    def.reads({x});
    const auto op = declare(def);
    const Value out = def.writes();
    def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {op(g, in[0])}; });
    return out;
  }

  Value out(Value x, std::int64_t channels) {
    BlockDef def(unet.model, "out");
    def.reads({x});
    const auto norm = GroupNorm::declare(def, "out.0", channels, 1e-5f);
    const auto conv = Conv2d::declare(def, "out.2", channels, c.out_channels, 3);
    const Value eps = def.writes();
    def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {conv(g, silu(g, norm(g, in[0])))}; });
    return eps;
  }
};

}  // namespace

std::int64_t SdUnetConfig::latent_multiple() const {
  std::int64_t multiple = 1;
  for (const auto& step : output) multiple *= step.upsample ? 2 : 1;
  return multiple;
}

Result<SdUnetConfig> read_sd_unet_config(const Names& names) {
  SdUnetConfig c;
  SLUICE_ASSIGN(c.model_channels, names.dimension({"time_embed.0.weight"}, 0));
  SLUICE_ASSIGN(c.embedding, names.dimension({"time_embed.0.bias", "time_embed.2.bias"}, 0));
  SLUICE_ASSIGN(c.in_channels, names.dimension({"input_blocks.0.0.weight"}, 2));
  SLUICE_ASSIGN(c.out_channels, names.dimension({"out.2.bias"}, 0));
  SLUICE_ASSIGN(c.context, names.dimension({"middle_block.1.transformer_blocks.0.attn2.to_k.weight",
                                            "middle_block.1.transformer_blocks.0.attn2.to_v.weight"},
                                           0));
  SLUICE_ASSIGN(c.input, read_input_steps(names));
  SLUICE_ASSIGN(c.output, read_output_steps(names));
  c.middle_depth = transformer_depth(names, "middle_block.1.");
  SLUICE_TRY(check_structure(c));
  return c;
}

SdUnet sd_unet(const SdUnetConfig& c) {
  SdUnet unet;
  unet.model.name = "denoiser";
  unet.x = unet.model.add_input("x", Refresh::every_sweep);
  unet.t_emb = unet.model.add_input("t_emb", Refresh::every_sweep);
  unet.context = unet.model.add_input("context", Refresh::once_per_lane);
  Builder b{c, unet};
  b.temb = b.time_embed();

  struct Skip {
    Value value;
    std::int64_t channels;
  };
  std::vector<Skip> skips;
  Value h = unet.x;
  std::int64_t width = c.in_channels;
  for (std::size_t i = 0; i < c.input.size(); ++i) {
    const auto& step = c.input[i];
    const std::string at = fmt::format("input_blocks.{}.", i);
    if (i == 0) {
      h = b.conv_in(h, step.channels);
    } else if (!step.resnet) {
      h = b.resample(at + "0.op", h, [&](BlockDef& def) { return Downsample::declare(def, at + "0.op", width, false); });
    } else {
      h = b.resnet(at + "0", h, width, step.channels);
      if (step.depth > 0) h = b.transformer(at + "1", h, step.channels, step.depth);
    }
    width = step.channels;
    skips.push_back({h, width});
  }

  h = b.resnet("middle_block.0", h, width, width);
  if (c.middle_depth > 0) h = b.transformer("middle_block.1", h, width, c.middle_depth);
  h = b.resnet("middle_block.2", h, width, width);

  for (std::size_t i = 0; i < c.output.size(); ++i) {
    const auto& step = c.output[i];
    const std::string at = fmt::format("output_blocks.{}.", i);
    const Skip skip = skips.back();
    skips.pop_back();
    h = b.resnet_with_skip(at + "0", h, skip.value, width + skip.channels, step.channels);
    width = step.channels;
    if (step.depth > 0) h = b.transformer(at + "1", h, width, step.depth);
    if (step.upsample) {
      const std::string name = at + (step.depth > 0 ? "2.conv" : "1.conv");
      h = b.resample(name, h, [&](BlockDef& def) { return Upsample::declare(def, name, width); });
    }
  }
  unet.eps = b.out(h, width);
  unet.model.outputs = {unet.eps};
  return unet;
}

}  // namespace sluice
