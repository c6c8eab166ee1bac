#include "nn/attention.h"

#include "doctest/doctest.h"
#include "nn/graph_runner.h"

namespace sluice::testing {
namespace {

constexpr Variants kWhole{.score_limit = 1 * GiB};
constexpr Variants kPieces{.score_limit = 1 * KiB, .flash = false};
constexpr Variants kFlash{.score_limit = 0, .flash = true};

Array run(const Variants& variants, const Array& q, const Array& k, const Array& v, int heads, bool causal = false,
          int threads = 1) {
  return GraphRunner{variants, threads}.apply(
      [&](GraphBuilder& g, const Tensors& in) { return attention(g, in[0], in[1], in[2], heads, causal); }, {q, k, v});
}

/// The definition, in f64.
std::vector<double> reference(const Array& q, const Array& k, const Array& v, int heads, bool causal) {
  const std::int64_t channels = q.at(0), d = channels / heads, queries = q.at(1), keys = k.at(1);
  std::vector<double> out(q.data.size()), p(static_cast<std::size_t>(keys));
  const auto get = [&](const Array& x, std::int64_t token, std::int64_t c) {
    return static_cast<double>(x.data[static_cast<std::size_t>(token * channels + c)]);
  };
  for (int h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < queries; ++i) {
      const std::int64_t seen = causal ? i + 1 : keys;
      double largest = -1e300, sum = 0;
      for (std::int64_t j = 0; j < seen; ++j) {
        double s = 0;
        for (std::int64_t c = h * d; c < (h + 1) * d; ++c) s += get(q, i, c) * get(k, j, c);
        p[static_cast<std::size_t>(j)] = s / std::sqrt(static_cast<double>(d));
        largest = std::max(largest, p[static_cast<std::size_t>(j)]);
      }
      for (std::int64_t j = 0; j < seen; ++j)
        sum += (p[static_cast<std::size_t>(j)] = std::exp(p[static_cast<std::size_t>(j)] - largest));
      for (std::int64_t c = h * d; c < (h + 1) * d; ++c) {
        double y = 0;
        for (std::int64_t j = 0; j < seen; ++j) y += p[static_cast<std::size_t>(j)] * get(v, j, c);
        out[static_cast<std::size_t>(i * channels + c)] = y / sum;
      }
    }
  }
  return out;
}

// Every way sums in f32: measured at most 1.4e-6 over the sizes below.
constexpr double kBound = 3e-6;

}  // namespace

TEST_CASE("attention: whole, in pieces and flash agree with the definition for every head size") {
  double worst = 0;
  for (const int d : {8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256, 320, 512}) {
    for (const auto& [queries, keys] :
         {std::pair{1, 1}, std::pair{1, 77}, std::pair{4, 77}, std::pair{37, 45}, std::pair{96, 130}}) {
      CAPTURE(d);
      CAPTURE(queries);
      CAPTURE(keys);
      const int heads = d <= 64 ? 8 : 2;
      const auto q = random_array({d * heads, queries}, 1, 2), k = random_array({d * heads, keys}, 2),
                 v = random_array({d * heads, keys}, 3);
      const auto want = reference(q, k, v, heads, false);
      for (const Variants& variants : {kWhole, kPieces, kFlash}) {
        const double error = rel_rms(run(variants, q, k, v, heads).data, want);
        CHECK(error <= kBound);
        worst = std::max(worst, error);
      }
    }
  }
  MESSAGE("largest rel_rms " << worst);
}

TEST_CASE("attention: pieces of queries give the bits of the whole") {
  const auto q = random_array({64, 50}, 1), k = random_array({64, 77}, 2), v = random_array({64, 77}, 3);
  const auto whole = run(kWhole, q, k, v, 2);
  CHECK(whole.shape == std::vector<std::int64_t>{64, 50, 1, 1});
  for (const Bytes limit : {Bytes{1}, Bytes{77 * 2 * 4 * 7}, Bytes{77 * 2 * 4 * 49}, Bytes{77 * 2 * 4 * 50}}) {
    CHECK(run({.score_limit = limit, .flash = false}, q, k, v, 2).data == whole.data);
  }
}

TEST_CASE("attention: causal") {
  const auto q = random_array({128, 77}, 1), k = random_array({128, 77}, 2), v = random_array({128, 77}, 3);
  const auto want = reference(q, k, v, 2, true);
  for (const Variants& variants : {kWhole, kPieces, kFlash})
    CHECK(rel_rms(run(variants, q, k, v, 2, true).data, want) <= kBound);
}

TEST_CASE("attention: the number of threads changes no bit") {
  for (const auto& [queries, keys] :
       {std::pair{1, 77}, std::pair{1, 600}, std::pair{4, 4}, std::pair{65, 77}, std::pair{256, 256}, std::pair{1024, 1024}}) {
    CAPTURE(queries);
    CAPTURE(keys);
    const auto q = random_array({64, queries}, 1), k = random_array({64, keys}, 2), v = random_array({64, keys}, 3);
    for (const Variants& variants : {kWhole, kFlash}) {
      CAPTURE(variants.score_limit);
      const auto one = run(variants, q, k, v, 8);
      CHECK(run(variants, q, k, v, 8, false, 2).data == one.data);
      CHECK(run(variants, q, k, v, 8, false, 3).data == one.data);
    }
  }
}

TEST_CASE("attention: large scores do not overflow") {
  const auto q = random_array({16, 9}, 1, 300), k = random_array({16, 9}, 2, 300), v = random_array({16, 9}, 3);
  const auto want = reference(q, k, v, 1, false);
  for (const Variants& variants : {kWhole, kPieces, kFlash}) CHECK(rel_rms(run(variants, q, k, v, 1).data, want) <= 1e-4);
}

}  // namespace sluice::testing
