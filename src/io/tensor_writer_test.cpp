#include "io/tensor_writer.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cstring>

#include "io/tensor_file.h"
#include "io/test_folder.h"

using namespace sluice;

namespace {

std::vector<std::byte> counting(std::size_t size, int from) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(from + static_cast<int>(i));
  return bytes;
}

}  // namespace

TEST_CASE(
    "write_safetensors: every dtype is read back; the order, names and metadata too; the same input gives the same bytes") {
  const test::Folder folder;
  std::vector<std::vector<std::byte>> data;
  std::vector<TensorToWrite> tensors;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::i64,
                            DType::i32, DType::i16, DType::i8, DType::u8, DType::boolean})
    data.push_back(counting(dtype_size(dtype) * 6, static_cast<int>(data.size())));
  const DType dtypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2,
                          DType::i64, DType::i32, DType::i16, DType::i8,   DType::u8,      DType::boolean};
  for (std::size_t i = 0; i < data.size(); ++i)
    tensors.push_back(
        {.name = "ü\"" + std::string(dtype_name(dtypes[i])), .dtype = dtypes[i], .shape = {3, 2}, .data = data[i]});
  const std::map<std::string, std::string> metadata{{"prompt", "a \"red\" ✓\n"}, {"format", "pt"}};
  for (const Bytes alignment : {Bytes{1}, Bytes{64}, Bytes{4096}}) {
    CAPTURE(alignment);
    REQUIRE(write_safetensors(folder / "a", tensors, metadata, alignment));
    const auto file = open_tensor_file(folder / "a", *system_files()).value();
    CHECK(file->metadata == metadata);
    CHECK(file->warnings.empty());
    Bytes last = 0;
    for (const auto& tensor : tensors) {
      CAPTURE(tensor.name);
      const auto* info = file->find(tensor.name);
      REQUIRE(info != nullptr);
      CHECK(info->dtype == tensor.dtype);
      CHECK(info->shape == tensor.shape);
      CHECK(info->offset % alignment == 0);
      CHECK(info->offset >= last);
      last = info->offset + info->size;
      std::vector<std::byte> back(info->size);
      REQUIRE(read_tensor(*file, *info, back));
      CHECK(std::memcmp(back.data(), tensor.data.data(), back.size()) == 0);
    }
    CHECK(last == file->file->size());
    if (alignment == 1) CHECK(file->tensors.size() == tensors.size());
    REQUIRE(write_safetensors(folder / "b", tensors, metadata, alignment));
    CHECK(test::slurp(folder / "a") == test::slurp(folder / "b"));
  }
}

TEST_CASE("write_safetensors: scalars, empty tensors and no tensors at all") {
  const test::Folder folder;
  const auto four = counting(4, 0);
  const std::vector<TensorToWrite> tensors{{.name = "s", .shape = {}, .data = four},
                                           {.name = "z", .shape = {0, 3}, .data = {}}};
  REQUIRE(write_safetensors(folder / "a", tensors, {}, 32));
  const auto file = open_tensor_file(folder / "a", *system_files()).value();
  CHECK(file->find("s")->shape.empty());
  CHECK(file->find("z")->shape == std::vector<std::int64_t>{0, 3});
  REQUIRE(write_safetensors(folder / "b", {}));
  CHECK(open_tensor_file(folder / "b", *system_files()).value()->tensors.empty());
}

TEST_CASE("write_safetensors: what cannot be written is refused and leaves no file") {
  const test::Folder folder;
  const auto eight = counting(8, 0);
  const auto refused = [&](std::vector<TensorToWrite> tensors, std::map<std::string, std::string> metadata = {},
                           Bytes alignment = 1) {
    const auto status = write_safetensors(folder / "a", tensors, metadata, alignment);
    return !status && status.error().code == Code::invalid_argument && folder.entries() == 0;
  };
  const TensorToWrite good{.name = "a", .shape = {2}, .data = eight};
  CHECK(refused({good, good}));
  for (const std::string name : {"", "__metadata__", "__pad.0", "\xff"})
    CHECK(refused({{.name = name, .shape = {2}, .data = eight}}));
  CHECK(refused({{.name = "a", .shape = {3}, .data = eight}}));
  CHECK(refused({{.name = "a", .shape = {-2}, .data = eight}}));
  CHECK(refused({{.name = "a", .dtype = DType::quantised, .shape = {2}, .data = eight}}));
  CHECK(refused({good}, {{"k", "\xff"}}));
  CHECK(refused({good}, {}, 0));
  CHECK(refused({good}, {}, 48));
}
