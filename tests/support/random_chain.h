#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "io/memory_file.h"
#include "io/tensor_file.h"
#include "nn/linear.h"
#include "residency/weight_store.h"
#include "support/two_block_model.h"

namespace sluice::test {

/// A random model of two to eight small blocks of unlike sizes, in a file that lies in memory: each reads one to three earlier
/// values (also ones from long ago, and what others read too), some write two, some have no weights, some need an operator that
/// a device may lack. A sweep takes microseconds. Immutable; outlives every store that knows it.
class RandomChain {
 public:
  RandomChain(std::string name, unsigned seed) {
    std::mt19937 rng(seed);
    const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(rng() % n); };
    std::normal_distribution<float> normal(0, 0.2f);
    model_.name = std::move(name);
    width_ = 8 + 8 * below(3);
    tokens_ = 1 + below(24);
    std::vector<Value> values = {model_.add_input("x", Refresh::every_sweep), model_.add_input("c", Refresh::once_per_lane)};
    std::string header = "{";
    std::vector<std::byte> data;
    const std::size_t blocks = 2 + below(7);
    for (std::size_t b = 0; b < blocks; ++b) {
      const std::string block = fmt::format("{}b{}", model_.name, b);
      BlockDef def(model_, block);
      std::vector<Value> reads = {values.back()};
      for (std::uint32_t extra = below(3); extra > 0; --extra) {
        const Value v = values[below(static_cast<std::uint32_t>(values.size()))];
        if (std::find(reads.begin(), reads.end(), v) == reads.end()) reads.push_back(v);
      }
      def.reads(reads);
      const std::int64_t hidden = below(8) == 0 ? 0 : 8 + 8 * below(12);
      std::optional<Linear> up, down;
      if (hidden > 0) {
        up = Linear::declare(def, block + ".up", width_, hidden, false);
        down = Linear::declare(def, block + ".down", hidden, width_, false);
        for (const auto& [tensor, shape] : {std::pair{".up", fmt::format("{},{}", hidden, width_)},
                                            std::pair{".down", fmt::format("{},{}", width_, hidden)}}) {
          const std::size_t at = data.size(), bytes = static_cast<std::size_t>(hidden * width_) * sizeof(float);
          data.resize(at + bytes);
          for (std::size_t i = at; i < data.size(); i += sizeof(float)) {
            const float value = normal(rng);
            std::memcpy(&data[i], &value, sizeof value);
          }
          header += fmt::format(R"({}"{}{}.weight":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})",
                                header.size() == 1 ? "" : ",", block, tensor, shape, at, at + bytes);
        }
      }
      const std::uint32_t kind = below(5);
      const bool two = below(4) == 0;
      text_ += fmt::format("{}{}x{} k{} reads", b == 0 ? "" : "; ", width_, hidden, kind);
      for (const Value v : reads) text_ += fmt::format(" {}", v.id);
      largest_ = std::max(largest_, static_cast<Bytes>(2 * hidden * width_) * sizeof(float) + 2048);
      values.push_back(def.writes());
      if (two) values.push_back(def.writes());
      def.finish([=](GraphBuilder& g, const Tensors& in) -> Tensors {
        ggml_context* c = g.context();
        ggml_tensor* x = in[0];
        for (std::size_t i = 1; i < in.size(); ++i) x = ggml_add(c, x, in[i]);
        if (up) x = (*down)(g, ggml_relu(c, (*up)(g, x)));
        if (kind == 1) x = ggml_sqr(c, x);
        if (kind == 2) x = ggml_sin(c, x);
        if (kind == 3) x = ggml_norm(c, x, 1e-5f);
        // A real node whatever came before, and nothing grows from block to block.
        ggml_tensor* y = ggml_tanh(c, x);
        if (!two) return {y};
        return {y, ggml_scale(c, y, 0.5f)};
      });
    }
    model_.outputs = {values.back()};
    if (values.size() > 4) model_.outputs.push_back(values[values.size() - 3]);
    header += "}";
    while (header.size() % 64 != 56) header += ' ';
    file_.resize(8 + header.size());
    for (std::size_t i = 0; i < 8; ++i) file_[i] = static_cast<std::byte>(header.size() >> (8 * i));
    std::memcpy(file_.data() + 8, header.data(), header.size());
    file_.insert(file_.end(), data.begin(), data.end());
  }

  /// What some of its blocks need and a device may lack.
  static std::vector<const char*> operators() { return {"SQR", "SIN", "NORM", "SCALE"}; }

  const Model& model() const { return model_; }
  const std::string& text() const { return text_; }
  /// Bytes that no image exceeds, at alignments up to 1 KiB.
  Bytes largest_image() const { return largest_; }
  LaneShape lane() const { return {{{width_, tokens_, 1, 1}, {width_, tokens_, 1, 1}}}; }

  /// For a store. `read` may make its reads fail. Errors: those of open_tensor_file.
  Result<ComponentSpec> spec(const std::shared_ptr<Countdown>& read, std::vector<std::size_t> devices) const {
    SLUICE_ASSIGN(const auto file, open_tensor_file(memory_file(model_.name, file_)));
    auto switched = std::make_shared<TensorFile>(*file);
    switched->file = std::make_shared<SwitchedFile>(file->file, read);
    ComponentSpec spec{model_.name, &model_, {}, std::move(devices)};
    for (const auto& block : model_.blocks) {
      auto& sources = spec.sources.emplace_back();
      for (const auto& weight : block.weights)
        sources.push_back({switched, static_cast<std::size_t>(file->find(weight.name) - file->tensors.data())});
    }
    return spec;
  }

  /// The inputs of a lane, always the same.
  std::vector<std::vector<float>> inputs(std::size_t lane) const {
    std::mt19937 rng(static_cast<unsigned>(lane) + 17);
    std::vector<std::vector<float>> all(2, std::vector<float>(static_cast<std::size_t>(width_ * tokens_)));
    for (auto& values : all)
      for (float& v : values) v = static_cast<float>(rng() % 2001) / 1000.0f - 1.0f;
    return all;
  }

 private:
  std::int64_t width_ = 0, tokens_ = 0;
  Model model_;
  std::string text_;
  Bytes largest_ = 0;
  std::vector<std::byte> file_;
};

}  // namespace sluice::test
