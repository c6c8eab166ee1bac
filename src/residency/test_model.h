#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <map>

#include "residency/test_files.h"
#include "residency/weight_store.h"

namespace sluice {

inline constexpr HostTier kTiers[] = {HostTier::disk, HostTier::mapped, HostTier::read};

/// A model whose weights are tensors of files by name, and what its images must be.
struct Fixture {
  Model model;
  std::vector<std::vector<WeightSource>> sources;

  void block() {
    model.blocks.push_back({.name = "block" + std::to_string(model.blocks.size())});
    sources.emplace_back();
  }
  void weight(const std::shared_ptr<const TensorFile>& file, const std::string& name, WeightRole role,
              std::vector<std::int64_t> shape = {}, std::int64_t first_row = 0, std::int64_t rows = -1) {
    const TensorInfo* info = file->find(name);
    REQUIRE(info != nullptr);
    model.blocks.back().weights.push_back({name, shape.empty() ? info->shape : shape, role});
    sources.back().push_back({file, static_cast<std::size_t>(info - file->tensors.data()), first_row, rows});
  }
  ComponentSpec spec(std::string name = "test") const { return {std::move(name), &model, sources}; }
};

/// A block's image put together one element after another, by the formats' definitions.
inline std::vector<std::byte> expected_image(const Fixture& fixture, std::size_t block, const BlockLayout& layout) {
  std::vector<std::byte> image(layout.size);
  for (std::size_t w = 0; w < layout.tensors.size(); ++w) {
    const WeightSource& source = fixture.sources[block][w];
    const TensorInfo& info = source.file->tensors[source.tensor];
    const auto& tensor = layout.tensors[w];
    std::vector<std::byte> stored(info.size);
    REQUIRE(read_tensor(*source.file, info, stored));
    const Bytes row_bytes = info.shape.size() < 2
                                ? dtype_size(info.dtype)
                                : info.size * static_cast<Bytes>(info.shape[0]) / static_cast<Bytes>(info.elements());
    const std::byte* from = stored.data() + static_cast<Bytes>(source.first_row) * row_bytes;
    std::byte* to = image.data() + tensor.offset;
    if (info.ggml == tensor.type) {
      std::memcpy(to, from, tensor.size);
      continue;
    }
    const auto n = static_cast<std::size_t>(test_elements(tensor.shape));
    std::vector<float> values(n);
    if (info.dtype == DType::quantised)
      ggml_get_type_traits(info.ggml)->to_float(from, values.data(), static_cast<std::int64_t>(n));
    else
      for (std::size_t i = 0; i < n; ++i)
        values[i] = static_cast<float>(decode_element(info.dtype, from + i * dtype_size(info.dtype)));
    if (tensor.type == GGML_TYPE_F32) {
      std::memcpy(to, values.data(), n * 4);
    } else {
      REQUIRE(tensor.type == GGML_TYPE_F16);
      for (std::size_t i = 0; i < n; ++i) {
        const ggml_fp16_t half = ggml_fp32_to_fp16(values[i]);
        std::memcpy(to + 2 * i, &half, 2);
      }
    }
  }
  return image;
}

/// All dtypes and roles, weights longer than every piece, parts of fused tensors, tied weights, two files, an empty block.
struct Everything : Fixture {
  TestFolder folder;

  explicit Everything(const FileSource& files = *system_files()) {
    write_test_file(
        folder.file("a.safetensors"),
        {random_tensor("f64", DType::f64, {512, 700}, 1), random_tensor("f32", DType::f32, {33, 7}, 2),
         random_tensor("f16", DType::f16, {1024, 2200}, 3), random_tensor("bf16", DType::bf16, {65, 3}, 4),
         random_tensor("e4m3", DType::f8_e4m3, {1024, 1100}, 5), random_tensor("e5m2", DType::f8_e5m2, {31}, 6),
         random_tensor("kernel", DType::f16, {3, 3, 5, 6}, 7), random_tensor("bkernel", DType::bf16, {3, 3, 5, 6}, 8),
         random_tensor("qkv", DType::f16, {48, 144}, 9), random_tensor("qkv_bias", DType::f16, {144}, 10),
         random_tensor("odd", DType::f8_e5m2, {5}, 11), random_tensor("scale", DType::bf16, {77}, 12)});
    write_test_gguf(folder.file("b.gguf"), {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q5_1, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K},
                    256, 12);
    const auto a = open_test_file(folder.file("a.safetensors"), files), b = open_test_file(folder.file("b.gguf"), files);
    block();
    weight(a, "scale", WeightRole::vector);
    weight(a, "f64", WeightRole::matrix);
    weight(a, "odd", WeightRole::vector);
    weight(a, "f32", WeightRole::matrix);
    block();
    weight(a, "e4m3", WeightRole::matrix);
    weight(a, "f16", WeightRole::matrix);
    weight(a, "bf16", WeightRole::matrix);
    block();
    block();
    weight(a, "kernel", WeightRole::kernel);
    weight(b, "q8_0", WeightRole::matrix);
    weight(a, "bkernel", WeightRole::kernel);
    weight(a, "e5m2", WeightRole::vector);
    weight(b, "q4_0", WeightRole::kernel);
    weight(b, "q5_1", WeightRole::dense);
    weight(b, "q4_K", WeightRole::matrix);
    weight(a, "kernel", WeightRole::kernel);
    block();
    for (std::int64_t i : {1, 0, 2}) {
      weight(a, "qkv", WeightRole::matrix, {48, 48}, i * 48, 48);
      weight(a, "qkv_bias", WeightRole::vector, {48}, i * 48, 48);
    }
    weight(b, "q6_K", WeightRole::matrix, {256, 5}, 4, 5);
  }
};

inline std::vector<std::byte> staging_for(const WeightStore& store, ComponentId id, const Model& model) {
  Bytes most = 0;
  for (std::uint32_t b = 0; b < model.blocks.size(); ++b) most = std::max(most, store.layout({id, b}).size);
  return std::vector<std::byte>(most, std::byte{0xEE});
}

inline bool equal(std::span<const std::byte> a, std::span<const std::byte> b) { return std::ranges::equal(a, b); }

inline ComponentId must_add(WeightStore& store, ComponentSpec spec) {
  auto id = store.add(std::move(spec));
  REQUIRE_MESSAGE(id.has_value(), id.error().message);
  return *id;
}

/// Every block's image is what its weights say.
inline void check_images(WeightStore& store, const Fixture& fixture, ComponentId id) {
  for (std::uint32_t b = 0; b < fixture.model.blocks.size(); ++b) {
    auto staging = staging_for(store, id, fixture.model);
    const auto image = store.fetch({id, b}, staging, CancelToken());
    REQUIRE_MESSAGE(image.has_value(), image.error().message);
    CHECK(equal(*image, expected_image(fixture, b, store.layout({id, b}))));
  }
}

/// A file that tells somebody before each read.
class HookedFile final : public File {
 public:
  HookedFile(std::shared_ptr<const File> inner, std::function<void()> hook)
      : inner_(std::move(inner)), hook_(std::move(hook)) {}
  const std::string& path() const override { return inner_->path(); }
  Bytes size() const override { return inner_->size(); }
  Status read_at(Bytes offset, std::span<std::byte> out) const override {
    hook_();
    return inner_->read_at(offset, out);
  }
  Result<std::shared_ptr<const Mapping>> map() const override { return inner_->map(); }
  Status unchanged() const override { return inner_->unchanged(); }
  Bytes bytes_read() const override { return inner_->bytes_read(); }

 private:
  std::shared_ptr<const File> inner_;
  std::function<void()> hook_;
};

inline void hook(Fixture& fixture, const std::function<void()>& before_read) {
  std::map<const TensorFile*, std::shared_ptr<const TensorFile>> hooked;
  for (auto& block : fixture.sources)
    for (auto& source : block) {
      auto& file = hooked[source.file.get()];
      if (!file) {
        auto copy = std::make_shared<TensorFile>(*source.file);
        copy->file = std::make_shared<HookedFile>(source.file->file, before_read);
        file = copy;
      }
      source.file = file;
    }
}

}  // namespace sluice
