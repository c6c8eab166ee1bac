#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "io/memory_file.h"
#include "io/tensor_file.h"
#include "nn/linear.h"
#include "residency/weight_store.h"

namespace sluice::test {

/// Counts down to an operation that is to fail: armed with n, the n-th `strikes()` is true; 0 is never.
class Countdown {
 public:
  void arm(int n) { left_ = n; }
  bool armed() const { return left_ > 0; }
  bool strikes() {
    int left = left_.load();
    while (left > 0 && !left_.compare_exchange_weak(left, left - 1)) {
    }
    return left == 1;
  }

 private:
  std::atomic<int> left_{0};
};

/// A file whose n-th read from now on can be made to fail.
class SwitchedFile final : public File {
 public:
  SwitchedFile(std::shared_ptr<const File> inner, std::shared_ptr<Countdown> read)
      : inner_(std::move(inner)), read_(std::move(read)) {}
  const std::string& path() const override { return inner_->path(); }
  Bytes size() const override { return inner_->size(); }
  Status read_at(Bytes offset, std::span<std::byte> out) const override {
    if (read_->strikes()) return fail(Code::io, fmt::format("{}: offset {}: failed as ordered", path(), offset));
    return inner_->read_at(offset, out);
  }
  Result<std::shared_ptr<const Mapping>> map() const override { return inner_->map(); }
  Status unchanged() const override { return inner_->unchanged(); }
  Bytes bytes_read() const override { return inner_->bytes_read(); }

 private:
  std::shared_ptr<const File> inner_;
  std::shared_ptr<Countdown> read_;
};

/// A model of two to four square linear layers, one block each, all of one size, in a file that lies in memory. A sweep takes
/// microseconds. Immutable; outlives every store that knows it.
class TwoBlockModel {
 public:
  static constexpr std::int64_t kTokens = 2;

  TwoBlockModel(std::string name, std::size_t blocks, std::int64_t width, unsigned seed) : width_(width) {
    model_.name = std::move(name);
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0, 0.2f);
    const auto elements = static_cast<std::size_t>(width * width);
    std::string header = "{";
    Value x = model_.add_input("x", Refresh::every_sweep);
    for (std::size_t b = 0; b < blocks; ++b) {
      std::vector<float> values(elements);
      for (float& v : values) v = normal(rng);
      images_.emplace_back(elements * sizeof(float));
      std::memcpy(images_.back().data(), values.data(), images_.back().size());
      const std::string block = fmt::format("{}{}", model_.name, b);
      header += fmt::format(R"({}"{}.weight":{{"dtype":"F32","shape":[{},{}],"data_offsets":[{},{}]}})", b == 0 ? "" : ",",
                            block, width, width, b * block_bytes(), (b + 1) * block_bytes());
      BlockDef def(model_, block);
      def.reads({x});
      const auto linear = Linear::declare(def, block, width, width, false);
      x = def.writes();
      def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors { return {linear(g, in[0])}; });
    }
    model_.outputs = {x};
    header += "}";
    while (header.size() % 64 != 56) header += ' ';
    file_.resize(8 + header.size());
    for (std::size_t i = 0; i < 8; ++i) file_[i] = static_cast<std::byte>(header.size() >> (8 * i));
    std::memcpy(file_.data() + 8, header.data(), header.size());
    for (const auto& image : images_) file_.insert(file_.end(), image.begin(), image.end());
  }

  const Model& model() const { return model_; }
  const std::string& name() const { return model_.name; }
  std::size_t blocks() const { return images_.size(); }
  Bytes block_bytes() const { return static_cast<Bytes>(width_ * width_) * sizeof(float); }
  /// What the device has to hold for a block: its one tensor as the file has it.
  const std::vector<std::byte>& image(std::size_t block) const { return images_[block]; }
  std::vector<std::int64_t> input_shape() const { return {width_, kTokens}; }
  std::size_t input_elements() const { return static_cast<std::size_t>(width_ * kTokens); }

  /// For a store. `read` may make its reads fail. Errors: those of open_tensor_file.
  Result<ComponentSpec> spec(const std::shared_ptr<Countdown>& read, std::size_t device = 0) const {
    SLUICE_ASSIGN(const auto file, open_tensor_file(memory_file(model_.name, file_)));
    auto switched = std::make_shared<TensorFile>(*file);
    switched->file = std::make_shared<SwitchedFile>(file->file, read);
    ComponentSpec spec{model_.name, &model_, {}, {device}};
    for (const auto& block : model_.blocks)
      spec.sources.push_back({{switched, static_cast<std::size_t>(file->find(block.weights[0].name) - file->tensors.data())}});
    return spec;
  }

  /// The input of a lane, always the same.
  std::vector<float> input(std::size_t lane) const {
    std::mt19937 rng(static_cast<unsigned>(lane) + 17);
    std::vector<float> values(input_elements());
    for (float& v : values) v = static_cast<float>(rng() % 2001) / 1000.0f - 1.0f;
    return values;
  }

 private:
  std::int64_t width_;
  Model model_;
  std::vector<std::vector<std::byte>> images_;
  std::vector<std::byte> file_;
};

}  // namespace sluice::test
