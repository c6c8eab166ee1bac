#include <doctest/doctest.h>

#include "io/convert.h"
#include "io/faulty_files.h"
#include "residency/test_files.h"
#include "residency/weight_store.h"

using namespace sluice;

TEST_CASE("gather_rows: the rows of every type, each read once") {
  const TestFolder folder;
  constexpr std::int64_t kWidth = 256, kRows = 40;
  std::vector<TestTensor> tensors;
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2})
    tensors.push_back(random_tensor(std::string(dtype_name(dtype)), dtype, {kWidth, kRows}, 5));
  write_test_file(folder.file("a.safetensors"), tensors);
  write_test_gguf(folder.file("a.gguf"), {GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K}, kWidth, kRows);

  const std::vector<std::int32_t> rows = {7, 39, 7, 0, 8, 9, 7, 30, 0};
  for (const char* name : {"a.safetensors", "a.gguf"}) {
    const auto file = open_test_file(folder.file(name), *system_files());
    for (std::size_t t = 0; t < file->tensors.size(); ++t) {
      const TensorInfo& info = file->tensors[t];
      CAPTURE(info.name);
      std::vector<std::byte> stored(info.size);
      REQUIRE(read_tensor(*file, info, stored));
      std::vector<float> table(static_cast<std::size_t>(kWidth * kRows));
      REQUIRE(convert(info, stored, kWidth * kRows, GGML_TYPE_F32, std::as_writable_bytes(std::span(table))));

      const Bytes before = file->file->bytes_read();
      std::vector<float> out(rows.size() * kWidth, -1.0f);
      REQUIRE(WeightStore::gather_rows({file, t}, rows, out));
      CHECK(file->file->bytes_read() - before == 6 * info.size / kRows);
      for (std::size_t i = 0; i < rows.size(); ++i)
        CHECK(std::memcmp(out.data() + i * kWidth, table.data() + rows[i] * kWidth, kWidth * sizeof(float)) == 0);

      // Part of a table: its rows count from the part's first.
      std::vector<float> part(kWidth);
      REQUIRE(WeightStore::gather_rows({file, t, 10, 20}, std::vector<std::int32_t>{3}, part));
      CHECK(std::memcmp(part.data(), table.data() + 13 * kWidth, kWidth * sizeof(float)) == 0);
      CHECK_FALSE(WeightStore::gather_rows({file, t, 10, 20}, std::vector<std::int32_t>{20}, part));
    }
  }
}

TEST_CASE("gather_rows: refuses rows that are not there, and passes read errors on") {
  const TestFolder folder;
  write_test_file(folder.file("t.safetensors"),
                  {random_tensor("t", DType::f16, {16, 8}, 1), random_tensor("ids", DType::i64, {8}, 1)});
  const auto file = open_test_file(folder.file("t.safetensors"), *system_files());
  std::vector<float> out(16);
  for (std::int32_t row : {-1, 8, INT32_MAX}) {
    const auto status = WeightStore::gather_rows({file, 0}, std::span(&row, 1), out);
    REQUIRE_FALSE(status);
    CHECK(status.error().code == Code::invalid_argument);
  }
  const std::int32_t two[] = {1, 2};
  CHECK(WeightStore::gather_rows({file, 0}, two, out).error().code == Code::invalid_argument);
  CHECK(WeightStore::gather_rows({file, 7}, two, out).error().code == Code::not_found);
  CHECK(WeightStore::gather_rows({file, 0}, {}, {}));

  const FaultyFiles probe(system_files(), {});
  const auto counted = open_test_file(folder.file("t.safetensors"), probe);
  const FaultyFiles broken(system_files(), {.fail_read = probe.reads() + 1});
  const auto bad = open_test_file(folder.file("t.safetensors"), broken);
  const std::int32_t row = 3;
  const auto status = WeightStore::gather_rows({bad, 0}, std::span(&row, 1), out);
  REQUIRE_FALSE(status);
  CHECK(status.error().code == Code::io);
  CHECK(WeightStore::gather_rows({bad, 0}, std::span(&row, 1), out));
}
