#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"

namespace sluice {

/// Whose random numbers: the same seed gives the same noise as torch.randn does there.
enum class RandomKind {
  cpu,   ///< torch's CPU generator: mt19937 seeded with the low 32 bits
  cuda,  ///< torch's CUDA generator: Philox4x32-10 with all 64 bits as key
};

/// Every kind; "cpu", "cuda"; every kind's name parses back to it. Errors: invalid_argument, listing the valid names.
std::span<const RandomKind> random_kinds();
std::string_view random_name(RandomKind kind);
Result<RandomKind> parse_random(std::string_view name);

/// A stream of unit normals. What a call gives depends on the seed, the calls before it and their sizes. Not thread safe.
class RandomStream {
 public:
  virtual ~RandomStream() = default;
  /// Fills `out` as one torch.randn of that many values would, in row-major order. Cost: linear.
  virtual void normal(std::span<float> out) = 0;
};

/// cpu: fewer than 16 values are drawn one at a time in f64 (the second of a pair is kept for a later small call); from 16 on
/// the buffer is filled with uniforms and turned into normals in blocks of 16, the last 16 afresh if the size is not a
/// multiple. cuda: the key is the seed, the counter (call, 0, index, 0); calls count from 0. Like torch as long as one launch
/// covers the tensor with one thread per value, which holds to some hundred thousand values; beyond, torch's numbers depend on
/// the card. Both agree with torch up to the last bits of log, sin and cos. Sources: pytorch
/// aten/src/ATen/native/cpu/DistributionTemplates.h and core/DistributionsHelper.h; Salmon et al. 2011 (Philox).
std::unique_ptr<RandomStream> make_random_stream(RandomKind kind, std::uint64_t seed);

/// The seed of image `index` of a batch: seed + index, wrapping at 2^64. Image i of a batch is the single image of that seed.
constexpr std::uint64_t image_seed(std::uint64_t seed, std::uint64_t index) { return seed + index; }

}  // namespace sluice
