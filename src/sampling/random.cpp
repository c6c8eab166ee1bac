#include "sampling/random.h"

#include <array>
#include <cmath>
#include <numbers>
#include <optional>
#include <random>

#include "sampling/names.h"

namespace sluice {
namespace {

constexpr std::pair<RandomKind, std::string_view> kNames[] = {{RandomKind::cpu, "cpu"}, {RandomKind::cuda, "cuda"}};
constexpr RandomKind kKinds[] = {RandomKind::cpu, RandomKind::cuda};

class TorchCpuStream final : public RandomStream {
 public:
  explicit TorchCpuStream(std::uint64_t seed) : engine_(static_cast<std::uint32_t>(seed)) {}

  void normal(std::span<float> out) override {
    constexpr std::size_t kBlock = 16;
    if (out.size() < kBlock) {
      for (float& v : out) v = static_cast<float>(one());
      return;
    }
    for (float& v : out) v = uniform24();
    for (std::size_t i = 0; i + kBlock <= out.size(); i += kBlock) transform(out.subspan(i).first<kBlock>());
    if (out.size() % kBlock != 0) {
      const auto tail = out.last<kBlock>();
      for (float& v : tail) v = uniform24();
      transform(tail);
    }
  }

 private:
  /// [0, 1) with 24 bits, as a float holds them.
  float uniform24() { return static_cast<float>(engine_() & 0xFFFFFF) * 0x1p-24f; }

  /// [0, 1) with 53 bits, the high word first.
  double uniform53() {
    const std::uint64_t high = engine_(), low = engine_();
    return static_cast<double>(((high << 32) | low) & ((std::uint64_t{1} << 53) - 1)) * 0x1p-53;
  }

  /// Box-Muller in f64; the sine half waits for the next call.
  double one() {
    if (spare_) {
      const double value = *spare_;
      spare_.reset();
      return value;
    }
    const double angle = 2 * std::numbers::pi * uniform53();
    const double radius = std::sqrt(-2 * std::log1p(-uniform53()));
    spare_ = radius * std::sin(angle);
    return radius * std::cos(angle);
  }

  /// 16 uniforms to 16 normals in place: the first eight give radii, the last eight angles. The roundings are those of f32
  /// arithmetic, but log, sin and cos are taken in f64, so that no C library's f32 versions decide the picture.
  static void transform(std::span<float, 16> block) {
    for (std::size_t j = 0; j < 8; ++j) {
      const auto log = static_cast<float>(std::log(double{1.0f - block[j]}));
      const float radius = std::sqrt(-2.0f * log);
      const double angle = 2.0f * std::numbers::pi_v<float> * block[j + 8];
      block[j] = radius * static_cast<float>(std::cos(angle));
      block[j + 8] = radius * static_cast<float>(std::sin(angle));
    }
  }

  std::mt19937 engine_;
  std::optional<double> spare_;
};

class PhiloxStream final : public RandomStream {
 public:
  explicit PhiloxStream(std::uint64_t seed) : seed_(seed) {}

  void normal(std::span<float> out) override {
    // curand scales by f32 constants; widened, they are what the reference computes with.
    constexpr float kInverse = 2.3283064e-10f;
    constexpr double kUnit = kInverse, kAngle = kInverse * 6.2831855f;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto [first, second] = words(static_cast<std::uint32_t>(i));
      const double u = first * kUnit + kUnit / 2, v = second * kAngle + kAngle / 2;
      out[i] = static_cast<float>(std::sqrt(-2 * std::log(u)) * std::sin(v));
    }
    ++calls_;
  }

 private:
  /// The first two words of Philox4x32-10 at counter (call, 0, index, 0).
  std::array<std::uint32_t, 2> words(std::uint32_t index) const {
    std::array<std::uint32_t, 4> c{calls_, 0, index, 0};
    auto k0 = static_cast<std::uint32_t>(seed_), k1 = static_cast<std::uint32_t>(seed_ >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53} * c[0], b = std::uint64_t{0xCD9E8D57} * c[2];
      c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
           static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    return {c[0], c[1]};
  }

  std::uint64_t seed_;
  std::uint32_t calls_ = 0;
};

}  // namespace

std::span<const RandomKind> random_kinds() { return kKinds; }
std::string_view random_name(RandomKind kind) { return name_in<RandomKind>(kind, kNames); }
Result<RandomKind> parse_random(std::string_view name) { return parse_name<RandomKind>("random stream", name, kNames); }

std::unique_ptr<RandomStream> make_random_stream(RandomKind kind, std::uint64_t seed) {
  if (kind == RandomKind::cpu) return std::make_unique<TorchCpuStream>(seed);
  return std::make_unique<PhiloxStream>(seed);
}

}  // namespace sluice
