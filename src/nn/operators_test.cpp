#include "doctest/doctest.h"
#include "nn/activation.h"
#include "nn/graph_runner.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/tokens.h"
#include "nn/weight_shape.h"

namespace sluice::testing {
namespace {

std::vector<double> map(const Array& x, const std::function<double(double)>& f) {
  std::vector<double> y;
  for (const float value : x.data) y.push_back(f(value));
  return y;
}

/// One module in a block of its own.
template <typename Declare>
Array run(const Declare& declare, const std::vector<Array>& weights, const Array& x, const GraphRunner& runner = {}) {
  Model model;
  BlockDef def(model, "test");
  const auto op = declare(def);
  def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {op(g, in[0])}; });
  return runner.run(model.blocks[0], weights, {x});
}

}  // namespace

TEST_CASE("activations: to f32's precision, not a table's") {
  const auto x = random_array({64, 33}, 1, 3);
  const auto apply = [&](auto function) {
    return GraphRunner{}.apply([&](GraphBuilder& g, const Tensors& in) { return function(g, in[0]); }, {x}).data;
  };
  CHECK(rel_rms(apply(silu), map(x, [](double v) { return v / (1 + std::exp(-v)); })) <= 1e-6);
  CHECK(rel_rms(apply(quick_gelu), map(x, [](double v) { return v / (1 + std::exp(-1.702 * v)); })) <= 1e-6);

  std::vector<double> want;
  for (std::size_t t = 0; t < 33; ++t) {
    for (std::size_t i = 0; i < 32; ++i) {
      const double value = x.data[t * 64 + i], gate = x.data[t * 64 + 32 + i];
      want.push_back(value * 0.5 * gate * (1 + std::erf(gate / std::sqrt(2.0))));
    }
  }
  CHECK(rel_rms(apply(geglu), want) <= 1e-6);
}

TEST_CASE("LayerNorm and GroupNorm: the definitions, with the variance's bias and eps inside the root") {
  const auto normalise = [](std::vector<double>& y, std::size_t first, std::size_t count, double eps) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < count; ++i) mean += y[first + i] / static_cast<double>(count);
    for (std::size_t i = 0; i < count; ++i)
      variance += (y[first + i] - mean) * (y[first + i] - mean) / static_cast<double>(count);
    for (std::size_t i = 0; i < count; ++i) y[first + i] = (y[first + i] - mean) / std::sqrt(variance + eps);
  };
  // Small values, so that eps matters.
  const auto x = random_array({6, 5, 64, 1}, 1, 0.003f), scale = random_array({64}, 2), bias = random_array({64}, 3);
  std::vector<double> want(x.data.begin(), x.data.end());
  for (std::size_t group = 0; group < 32; ++group) normalise(want, group * 60, 60, 1e-5);
  for (std::size_t i = 0; i < want.size(); ++i) want[i] = want[i] * scale.data[i / 30] + bias.data[i / 30];
  for (const int threads : {1, 2, 3}) {
    CHECK(
        rel_rms(
            run([](BlockDef& def) { return GroupNorm::declare(def, "norm", 64, 1e-5f); }, {scale, bias}, x, {{}, threads}).data,
            want) <= 1e-6);
  }

  const auto tokens = random_array({64, 7}, 4, 0.003f);
  want.assign(tokens.data.begin(), tokens.data.end());
  for (std::size_t t = 0; t < 7; ++t) normalise(want, t * 64, 64, 1e-5);
  for (std::size_t i = 0; i < want.size(); ++i) want[i] = want[i] * scale.data[i % 64] + bias.data[i % 64];
  CHECK(rel_rms(run([](BlockDef& def) { return LayerNorm::declare(def, "norm", 64); }, {scale, bias}, tokens).data, want) <=
        1e-6);
}

TEST_CASE("Linear: f32 to f32's precision, f16 to its own; threads change no bit") {
  const auto x = random_array({96, 13}, 1), w = random_array({96, 40}, 2), b = random_array({40}, 3);
  std::vector<double> want;
  for (std::size_t t = 0; t < 13; ++t) {
    for (std::size_t o = 0; o < 40; ++o) {
      double sum = b.data[o];
      for (std::size_t i = 0; i < 96; ++i) sum += static_cast<double>(x.data[t * 96 + i]) * w.data[o * 96 + i];
      want.push_back(sum);
    }
  }
  const auto declare = [](BlockDef& def) { return Linear::declare(def, "l", 96, 40); };
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16}) {
    const auto one = run(declare, {w, b}, x, {{}, 1, type});
    CHECK(rel_rms(one.data, want) <= (type == GGML_TYPE_F32 ? 1e-6 : 1e-3));
    CHECK(run(declare, {w, b}, x, {{}, 2, type}).data == one.data);
    CHECK(run(declare, {w, b}, x, {{}, 3, type}).data == one.data);
  }
}

TEST_CASE("tokens: a frame becomes tokens and a frame again") {
  const auto x = random_array({5, 3, 7, 1}, 1);
  const GraphRunner runner;
  const auto tokens = runner.apply([](GraphBuilder& g, const Tensors& in) { return frame_to_tokens(g, in[0]); }, {x});
  CHECK(tokens.shape == std::vector<std::int64_t>{7, 15, 1, 1});
  for (std::size_t p = 0; p < 15; ++p) {
    for (std::size_t c = 0; c < 7; ++c) CHECK(tokens.data[p * 7 + c] == x.data[c * 15 + p]);
  }
  const auto back =
      runner.apply([](GraphBuilder& g, const Tensors& in) { return tokens_to_frame(g, frame_to_tokens(g, in[0]), 5, 3); }, {x});
  CHECK(back.shape == x.shape);
  CHECK(back.data == x.data);
}

TEST_CASE("same_elements: dimensions of 1 do not count, everything else does") {
  using Shape = std::vector<std::int64_t>;
  CHECK(same_elements(Shape{1, 1, 320, 640}, Shape{320, 640}));
  CHECK(same_elements(Shape{3, 3, 64, 1}, Shape{3, 3, 64}));
  CHECK(same_elements(Shape{}, Shape{1}));
  CHECK(same_elements(Shape{1, 1}, Shape{}));
  CHECK_FALSE(same_elements(Shape{320, 640}, Shape{640, 320}));
  CHECK_FALSE(same_elements(Shape{320}, Shape{320, 2}));
  CHECK_FALSE(same_elements(Shape{6}, Shape{2, 3}));
  CHECK_FALSE(same_elements(Shape{0}, Shape{}));
}

TEST_CASE("Variants: the hash tells tables apart") {
  const Variants base;
  CHECK(base.hash() == Variants{}.hash());
  CHECK(base.hash() != Variants{.im2col_limit = base.im2col_limit + 1}.hash());
  CHECK(base.hash() != Variants{.score_limit = base.score_limit + 1}.hash());
  CHECK(base.hash() != Variants{.flash = !base.flash}.hash());
}

}  // namespace sluice::testing
