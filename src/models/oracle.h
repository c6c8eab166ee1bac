#pragma once

#include <cmath>
#include <cstring>
#include <string>

#include "doctest/doctest.h"
#include "models/block_runner.h"

namespace sluice::testing {

inline std::string golden(const std::string& path) { return std::string(SLUICE_SOURCE_DIR) + "/tests/golden/" + path; }

inline std::shared_ptr<const TensorFile> open(const std::string& path) {
  auto file = open_tensor_file(path, *system_files());
  REQUIRE_MESSAGE(file, (file ? "" : file.error().message));
  return *file;
}

/// A tensor of an oracle's file, whole.
template <typename T = float>
std::vector<T> values(const TensorFile& file, const std::string& name) {
  const TensorInfo* info = file.find(name);
  REQUIRE_MESSAGE(info, name);
  REQUIRE(info->size == static_cast<Bytes>(info->elements()) * sizeof(T));
  std::vector<T> out(static_cast<std::size_t>(info->elements()));
  REQUIRE(read_tensor(file, *info, std::as_writable_bytes(std::span(out))));
  return out;
}

/// rms(got - want) / rms(want): the oracle's rel_rms. NaN anywhere gives NaN, which no bound accepts.
inline double rel_rms(std::span<const float> got, std::span<const float> want) {
  REQUIRE(got.size() == want.size());
  double error = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = static_cast<double>(got[i]) - want[i];
    error += d * d;
    size += static_cast<double>(want[i]) * want[i];
  }
  return std::sqrt(error / size);
}

/// max |got - want| / rms(want): the oracle's max_abs_over_rms.
inline double max_over_rms(std::span<const float> got, std::span<const float> want) {
  REQUIRE(got.size() == want.size());
  double largest = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - want[i]);
    if (!(d <= largest)) largest = d;
    size += static_cast<double>(want[i]) * want[i];
  }
  return largest / std::sqrt(size / static_cast<double>(want.size()));
}

/// Bounds on the two measures.
struct Bound {
  double rel_rms, max_over_rms;
};
/// f32 throughout: a tenth of the oracle's own tolerance. The oracle itself is up to 2e-6 from f64; measured here: at
/// most 1.5e-6 and 1.3e-5.
inline constexpr Bound kF32{1e-5, 1e-4};
/// Weights as stored in f16: ggml's CPU kernels round activations to f16 (2^-11 each) before a product, for which the oracle
/// allows 5e-3. Measured on all cases: at most 8.1e-4 and 4.1e-3.
inline constexpr Bound kF16{1e-3, 1e-2};

inline void check_close(const std::string& what, std::span<const float> got, std::span<const float> want, Bound bound) {
  const double rms = rel_rms(got, want), worst = max_over_rms(got, want);
  MESSAGE(what << ": rel_rms " << rms << " (bound " << bound.rel_rms << "), max/rms " << worst << " (bound "
               << bound.max_over_rms << ")");
  CHECK(rms <= bound.rel_rms);
  CHECK(worst <= bound.max_over_rms);
}

}  // namespace sluice::testing
