#include "residency/weight_recipe.h"

#include <doctest/doctest.h>

using namespace sluice;

namespace {

/// A parsed file without bytes: enough to resolve against.
std::shared_ptr<const TensorFile> header(std::vector<TensorInfo> tensors) {
  auto file = std::make_shared<TensorFile>();
  Bytes offset = 100;
  for (auto& t : tensors) {
    if (t.dtype != DType::quantised) t.ggml = dtype_to_ggml(t.dtype).value_or(GGML_TYPE_COUNT);
    const auto n = static_cast<Bytes>(t.elements());
    t.offset = offset;
    t.size = t.dtype == DType::quantised ? n / ggml_blck_size(t.ggml) * ggml_type_size(t.ggml) : n * dtype_size(t.dtype);
    offset += t.size;
  }
  file->tensors = std::move(tensors);
  return file;
}

TensorInfo tensor(DType dtype, std::vector<std::int64_t> shape, ggml_type ggml = GGML_TYPE_COUNT) {
  TensorInfo info;
  info.dtype = dtype;
  info.ggml = ggml;
  info.shape = std::move(shape);
  return info;
}

}  // namespace

TEST_CASE("device_type_for: every dtype in every role") {
  struct Row {
    DType dtype;
    ggml_type matrix, kernel, other;
  };
  constexpr ggml_type none = GGML_TYPE_COUNT, f32 = GGML_TYPE_F32, f16 = GGML_TYPE_F16;
  for (const Row& row :
       {Row{DType::f64, f32, f32, f32}, Row{DType::f32, f32, f32, f32}, Row{DType::f16, f16, f16, f32},
        Row{DType::bf16, GGML_TYPE_BF16, f32, f32}, Row{DType::f8_e4m3, f16, f16, f32}, Row{DType::f8_e5m2, f16, f16, f32},
        Row{DType::i64, none, none, none}, Row{DType::i32, none, none, none}, Row{DType::i16, none, none, none},
        Row{DType::i8, none, none, none}, Row{DType::u8, none, none, none}, Row{DType::boolean, none, none, none},
        Row{DType::quantised, GGML_TYPE_Q4_K, f16, f32}}) {
    CAPTURE(dtype_name(row.dtype));
    const TensorInfo info = tensor(row.dtype, {256}, row.dtype == DType::quantised ? GGML_TYPE_Q4_K : GGML_TYPE_COUNT);
    CHECK(device_type_for(info, WeightRole::matrix) == row.matrix);
    CHECK(device_type_for(info, WeightRole::kernel) == row.kernel);
    CHECK(device_type_for(info, WeightRole::vector) == row.other);
    CHECK(device_type_for(info, WeightRole::dense) == row.other);
  }
}

TEST_CASE("resolve_weight: whole tensors, parts of fused ones, and what does not fit") {
  const auto file = header({tensor(DType::f16, {8, 6}), tensor(DType::f32, {12}), tensor(DType::f16, {3, 3, 4, 6}),
                            tensor(DType::quantised, {256, 4}, GGML_TYPE_Q4_K), tensor(DType::i64, {4})});
  const auto resolve = [&](std::vector<std::int64_t> shape, WeightRole role, WeightSource source) {
    source.file = file;
    return resolve_weight({"w", std::move(shape), role}, source);
  };

  const auto whole = resolve({8, 6}, WeightRole::matrix, {.tensor = 0});
  REQUIRE(whole);
  CHECK(whole->begin == 100);
  CHECK(whole->bytes == 96);
  CHECK(whole->elements == 48);
  CHECK(whole->identity);
  CHECK(resolve({1, 1, 8, 6}, WeightRole::kernel, {.tensor = 0}));

  const auto rows = resolve({8, 2}, WeightRole::matrix, {.tensor = 0, .first_row = 2, .rows = 2});
  REQUIRE(rows);
  CHECK(rows->begin == 100 + 2 * 16);
  CHECK(rows->bytes == 32);

  const auto bias = resolve({4}, WeightRole::vector, {.tensor = 1, .first_row = 4, .rows = 4});
  REQUIRE(bias);
  CHECK(bias->begin == 100 + 96 + 16);
  CHECK(bias->bytes == 16);

  // A third of a convolution's output channels: 3 × 4 rows of 3 elements each.
  const auto kernel = resolve({3, 3, 4, 2}, WeightRole::kernel, {.tensor = 2, .first_row = 24, .rows = 24});
  REQUIRE(kernel);
  CHECK(kernel->bytes == 3 * 3 * 4 * 2 * 2);
  CHECK(kernel->begin == file->tensors[2].offset + 24 * 6);

  const auto quantised = resolve({256, 3}, WeightRole::matrix, {.tensor = 3, .first_row = 1});
  REQUIRE(quantised);
  CHECK(quantised->begin == file->tensors[3].offset + 144);
  CHECK(quantised->bytes == 3 * 144);
  CHECK(quantised->identity);
  CHECK_FALSE(resolve({256, 4}, WeightRole::dense, {.tensor = 3})->identity);

  const auto code = [](const auto& result) { return result ? Code::cancelled : result.error().code; };
  CHECK(code(resolve({6, 8}, WeightRole::matrix, {.tensor = 0})) == Code::invalid_argument);
  CHECK(resolve({6, 8}, WeightRole::matrix, {.tensor = 0}).error().message == "w: got f16 [8, 6], expected [6, 8]");
  CHECK(code(resolve({8, 2}, WeightRole::matrix, {.tensor = 0, .first_row = 5, .rows = 2})) == Code::invalid_argument);
  CHECK(code(resolve({8, 2}, WeightRole::matrix, {.tensor = 0, .first_row = -1, .rows = 2})) == Code::invalid_argument);
  CHECK(code(resolve({8, 2}, WeightRole::matrix, {.tensor = 0, .first_row = 1, .rows = INT64_MAX})) == Code::invalid_argument);
  CHECK(code(resolve({8, 2}, WeightRole::matrix, {.tensor = 0, .rows = -7})) == Code::invalid_argument);
  CHECK(code(resolve({4}, WeightRole::vector, {.tensor = 4})) == Code::unsupported);
  CHECK(code(resolve({4}, WeightRole::vector, {.tensor = 9})) == Code::not_found);
  CHECK(code(resolve({}, WeightRole::vector, {.tensor = 1})) == Code::invalid_argument);
  CHECK(code(resolve({0}, WeightRole::vector, {.tensor = 1, .rows = 0})) == Code::invalid_argument);
  // The same elements, but rows too short for the file's blocks.
  CHECK(code(resolve({1, 256, 4}, WeightRole::matrix, {.tensor = 3})) == Code::invalid_argument);
  CHECK(code(resolve_weight({"w", {4}, WeightRole::vector}, WeightSource{})) == Code::not_found);
}
