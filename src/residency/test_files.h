#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "ggml.h"
#include "gguf.h"
#include "io/tensor_file.h"
#include "io/tensor_writer.h"

namespace sluice {

/// A folder for one test's files, gone with it.
class TestFolder {
 public:
  TestFolder() {
    std::random_device random;
    path_ =
        std::filesystem::temp_directory_path() / ("sluice-residency-" + std::to_string(random()) + std::to_string(random()));
    std::filesystem::create_directories(path_);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// A tensor to be put into a test file, with bytes of its own.
struct TestTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

inline std::int64_t test_elements(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (std::int64_t d : shape) n *= d;
  return n;
}

inline std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(rng);
  return values;
}

/// Long tensors repeat after so many elements: prime, so that no piece of a read begins as another does.
inline constexpr std::size_t kTestPeriod = 4099;

/// Random finite values (for integers and fp8: random bytes without the codes of NaN and infinity).
inline TestTensor random_tensor(std::string name, DType dtype, std::vector<std::int64_t> shape, unsigned seed) {
  const auto n = static_cast<std::size_t>(test_elements(shape));
  std::vector<std::byte> data(n * dtype_size(dtype));
  const auto values = random_floats(std::min<std::size_t>(n, kTestPeriod), seed);
  std::mt19937 rng(seed);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double wide = static_cast<double>(values[i]) * (1 + 1e-9 * static_cast<double>(rng() % 1000));
    const ggml_fp16_t half = ggml_fp32_to_fp16(values[i]);
    const ggml_bf16_t brain = ggml_fp32_to_bf16(values[i]);
    const auto code = static_cast<std::uint8_t>(rng() % 0x7c | (rng() % 2 << 7));
    switch (dtype) {
      case DType::f64: std::memcpy(data.data() + 8 * i, &wide, 8); break;
      case DType::f32: std::memcpy(data.data() + 4 * i, &values[i], 4); break;
      case DType::f16: std::memcpy(data.data() + 2 * i, &half, 2); break;
      case DType::bf16: std::memcpy(data.data() + 2 * i, &brain, 2); break;
      default: std::memset(data.data() + dtype_size(dtype) * i, code, dtype_size(dtype)); break;
    }
  }
  for (std::size_t at = values.size() * dtype_size(dtype); at < data.size(); ++at)
    data[at] = data[at - values.size() * dtype_size(dtype)];
  return {std::move(name), dtype, std::move(shape), std::move(data)};
}

inline std::shared_ptr<const TensorFile> open_test_file(const std::string& path, const FileSource& files) {
  auto file = open_tensor_file(path, files);
  REQUIRE_MESSAGE(file.has_value(), file.error().message);
  return *file;
}

inline void write_test_file(const std::string& path, const std::vector<TestTensor>& tensors, Bytes alignment = 1) {
  std::vector<TensorToWrite> out;
  for (const auto& t : tensors) out.push_back({t.name, t.dtype, t.shape, t.data});
  const auto status = write_safetensors(path, out, {}, alignment);
  REQUIRE_MESSAGE(status.has_value(), status.error().message);
}

/// A GGUF file with one matrix [cols, rows] per type, named after it, quantised from random values; made by ggml itself.
inline void write_test_gguf(const std::string& path, const std::vector<ggml_type>& types, std::int64_t cols,
                            std::int64_t rows) {
  gguf_context* gguf = gguf_init_empty();
  ggml_context* context =
      ggml_init({ggml_tensor_overhead() * types.size() + static_cast<std::size_t>(cols * rows) * 4 * types.size() + 4096,
                 nullptr, false});
  for (std::size_t i = 0; i < types.size(); ++i) {
    ggml_tensor* t = ggml_new_tensor_2d(context, types[i], cols, rows);
    ggml_set_name(t, ggml_type_name(types[i]));
    const auto values = random_floats(static_cast<std::size_t>(cols * rows), 77 + static_cast<unsigned>(i));
    ggml_quantize_chunk(types[i], values.data(), t->data, 0, rows, cols, nullptr);
    gguf_add_tensor(gguf, t);
  }
  REQUIRE(gguf_write_to_file(gguf, path.c_str(), false));
  gguf_free(gguf);
  ggml_free(context);
}

/// One stored element as f64, by the definition of its format.
inline double decode_element(DType dtype, const std::byte* at) {
  const auto bits8 = std::to_integer<std::uint8_t>(*at);
  const auto float8 = [&](int mantissa, int bias) {
    const int exponent_bits = 7 - mantissa;
    const int exponent = (bits8 >> mantissa) & ((1 << exponent_bits) - 1);
    const double fraction = std::ldexp(static_cast<double>(bits8 & ((1 << mantissa) - 1)), -mantissa);
    const double size = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    return (bits8 & 0x80) != 0 ? -size : size;
  };
  switch (dtype) {
    case DType::f64: {
      double v;
      std::memcpy(&v, at, 8);
      return v;
    }
    case DType::f32: {
      float v;
      std::memcpy(&v, at, 4);
      return static_cast<double>(v);
    }
    case DType::f16: {
      ggml_fp16_t v;
      std::memcpy(&v, at, 2);
      return static_cast<double>(ggml_fp16_to_fp32(v));
    }
    case DType::bf16: {
      ggml_bf16_t v;
      std::memcpy(&v, at, 2);
      return static_cast<double>(ggml_bf16_to_fp32(v));
    }
    case DType::f8_e4m3: return float8(3, 7);
    case DType::f8_e5m2: return float8(2, 15);
    default: FAIL("no weight type"); return 0;
  }
}

}  // namespace sluice
