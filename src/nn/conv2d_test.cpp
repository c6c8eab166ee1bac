#include "nn/conv2d.h"

#include "doctest/doctest.h"
#include "nn/graph_runner.h"
#include "nn/resample.h"

namespace sluice::testing {
namespace {

constexpr Variants kUnfolded{.im2col_limit = 1 * GiB};
constexpr Variants kDirect{.im2col_limit = 0};

/// The definition, in f64. Kernel [k, k, in, out].
std::vector<double> reference(const Array& x, const Array& kernel, const Array& bias, int stride, int padding) {
  const std::int64_t k = kernel.at(0), in = kernel.at(2), out = kernel.at(3), w = x.at(0), h = x.at(1);
  const std::int64_t ow = (w + 2 * padding - k) / stride + 1, oh = (h + 2 * padding - k) / stride + 1;
  std::vector<double> y;
  for (std::int64_t o = 0; o < out; ++o) {
    for (std::int64_t py = 0; py < oh; ++py) {
      for (std::int64_t px = 0; px < ow; ++px) {
        double sum = bias.data[static_cast<std::size_t>(o)];
        for (std::int64_t c = 0; c < in; ++c) {
          for (std::int64_t ky = 0; ky < k; ++ky) {
            for (std::int64_t kx = 0; kx < k; ++kx) {
              const std::int64_t sx = px * stride + kx - padding, sy = py * stride + ky - padding;
              if (sx < 0 || sy < 0 || sx >= w || sy >= h) continue;
              sum += static_cast<double>(x.data[static_cast<std::size_t>((c * h + sy) * w + sx)]) *
                     kernel.data[static_cast<std::size_t>(((o * in + c) * k + ky) * k + kx)];
            }
          }
        }
        y.push_back(sum);
      }
    }
  }
  return y;
}

struct Shape {
  std::int64_t in, out, width, height;
  int kernel, stride, padding;
};
constexpr Shape kShapes[] = {{3, 8, 9, 7, 3, 1, 1}, {8, 3, 5, 12, 3, 2, 1},    {32, 16, 8, 8, 1, 1, 0},
                             {4, 4, 1, 1, 3, 1, 1}, {16, 32, 17, 33, 3, 2, 0}, {64, 64, 16, 16, 3, 1, 1}};

}  // namespace

TEST_CASE("Conv2d: both ways give the definition, and the same bits, whatever the number of threads") {
  for (const Shape& s : kShapes) {
    CAPTURE(s.in);
    CAPTURE(s.kernel);
    CAPTURE(s.stride);
    Model model;
    BlockDef def(model, "test");
    const auto conv = Conv2d::declare(def, "conv", s.in, s.out, s.kernel, s.stride, s.padding);
    def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {conv(g, in[0])}; });
    const auto x = random_array({s.width, s.height, s.in, 1}, 1), kernel = random_array({s.kernel, s.kernel, s.in, s.out}, 2),
               bias = random_array({s.out}, 3);
    const auto want = reference(x, kernel, bias, s.stride, s.padding);
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16}) {
      CAPTURE(type);
      const auto unfolded = GraphRunner{kUnfolded, 1, type}.run(model.blocks[0], {kernel, bias}, {x});
      // f16: both factors are rounded to 11 bits.
      CHECK(rel_rms(unfolded.data, want) <= (type == GGML_TYPE_F32 ? 1e-6 : 1e-3));
      CHECK(GraphRunner{kDirect, 1, type}.run(model.blocks[0], {kernel, bias}, {x}).data == unfolded.data);
      for (const int threads : {2, 3}) {
        CHECK(GraphRunner{kUnfolded, threads, type}.run(model.blocks[0], {kernel, bias}, {x}).data == unfolded.data);
        CHECK(GraphRunner{kDirect, threads, type}.run(model.blocks[0], {kernel, bias}, {x}).data == unfolded.data);
      }
    }
  }
}

TEST_CASE("Conv2d, Upsample, Downsample: what they say of their reach is true") {
  Model model;
  BlockDef def(model, "test");
  Conv2d::declare(def, "a", 4, 4, 3);
  Conv2d::declare(def, "b", 4, 4, 1);
  Upsample::declare(def, "c", 4);
  Downsample::declare(def, "d", 4, true);
  def.finish({});
  const auto& operators = model.blocks[0].operators;
  REQUIRE(operators.size() == 5);
  CHECK((operators[0].reach == Reach::local && operators[0].halo == 1 && operators[0].scale == 1));
  CHECK((operators[1].reach == Reach::pointwise && operators[1].halo == 0));
  CHECK((operators[2].reach == Reach::pointwise && operators[2].scale == 2));
  CHECK((operators[3].reach == Reach::local && operators[3].halo == 1));
  CHECK((operators[4].reach == Reach::local && operators[4].halo == 1 && operators[4].scale == 0.5));
}

TEST_CASE("Upsample doubles by repetition, Downsample halves with the padding it names") {
  const auto x = random_array({4, 6, 4, 1}, 1);
  Array doubled{{8, 12, 4, 1}, std::vector<float>(8 * 12 * 4)};
  Array padded{{5, 7, 4, 1}, std::vector<float>(5 * 7 * 4)};
  for (std::int64_t c = 0; c < 4; ++c) {
    for (std::int64_t y = 0; y < 12; ++y) {
      for (std::int64_t i = 0; i < 8; ++i) {
        doubled.data[static_cast<std::size_t>((c * 12 + y) * 8 + i)] =
            x.data[static_cast<std::size_t>((c * 6 + y / 2) * 4 + i / 2)];
      }
    }
    for (std::int64_t y = 0; y < 6; ++y) {
      for (std::int64_t i = 0; i < 4; ++i) {
        padded.data[static_cast<std::size_t>((c * 7 + y) * 5 + i)] = x.data[static_cast<std::size_t>((c * 6 + y) * 4 + i)];
      }
    }
  }
  const auto kernel = random_array({3, 3, 4, 4}, 2), bias = random_array({4}, 3);
  const auto check = [&](auto declare, const std::vector<double>& want, const std::vector<std::int64_t>& shape) {
    Model model;
    BlockDef def(model, "test");
    const auto op = declare(def);
    def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {op(g, in[0])}; });
    const auto got = GraphRunner{}.run(model.blocks[0], {kernel, bias}, {x});
    CHECK(got.shape == shape);
    CHECK(rel_rms(got.data, want) <= 1e-6);
  };
  check([](BlockDef& def) { return Upsample::declare(def, "up", 4); }, reference(doubled, kernel, bias, 1, 1), {8, 12, 4, 1});
  check([](BlockDef& def) { return Downsample::declare(def, "down", 4, false); }, reference(x, kernel, bias, 2, 1),
        {2, 3, 4, 1});
  check([](BlockDef& def) { return Downsample::declare(def, "down", 4, true); }, reference(padded, kernel, bias, 2, 0),
        {2, 3, 4, 1});
}

}  // namespace sluice::testing
