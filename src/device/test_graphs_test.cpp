// The graphs that the other tests of this folder share. Compiled into the test program only, by its name.
#include <doctest/doctest.h>

#include "device/test_graphs.h"

namespace sluice {
namespace {

Bytes padded(const Device& device, const ggml_tensor* tensor) {
  return align_up(ggml_backend_buft_get_alloc_size(device.buffer_type(), tensor), device.info().alignment);
}

ggml_context_ptr no_alloc(std::size_t tensors, std::size_t nodes) {
  return ggml_context_ptr{ggml_init({.mem_size = tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes, false),
                                     .mem_buffer = nullptr,
                                     .no_alloc = true})};
}

float weight_at(std::int64_t i) { return static_cast<float>(i * 7 % 13 - 6); }
float input_at(std::int64_t i) { return static_cast<float>(i * 5 % 11 - 5); }

}  // namespace

TestProduct::TestProduct(std::int64_t k, std::int64_t m, std::int64_t n, ggml_type type) : context_(no_alloc(8, 8)) {
  weight_ = ggml_new_tensor_2d(context_.get(), type, k, m);
  input_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, k, n);
  output_ = ggml_mul_mat(context_.get(), weight_, input_);
  graph_ = ggml_new_graph_custom(context_.get(), 8, false);
  ggml_build_forward_expand(graph_, output_);
}

Bytes TestProduct::bytes(const Device& device) const {
  return padded(device, weight_) + padded(device, input_) + padded(device, output_);
}

Address TestProduct::bind(Device& device, const Arena& arena, Address at) {
  for (ggml_tensor* tensor : {weight_, input_, output_}) {
    REQUIRE(arena.bind(tensor, at));
    at += padded(device, tensor);
  }
  const auto upload = [&](ggml_tensor* tensor, float (*value)(std::int64_t)) {
    std::vector<float> values(static_cast<std::size_t>(ggml_nelements(tensor)));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(static_cast<std::int64_t>(i));
    REQUIRE(device.set(tensor, 0, std::as_bytes(std::span(values)), 0, CancelToken{}));
  };
  if (weight_->type == GGML_TYPE_F32) {
    upload(weight_, weight_at);
  } else {
    const std::vector<std::byte> zeros(ggml_nbytes(weight_));
    REQUIRE(device.set(weight_, 0, zeros, 0, CancelToken{}));
  }
  upload(input_, input_at);
  return at;
}

std::vector<float> TestProduct::result(Device& device) const {
  std::vector<float> values(static_cast<std::size_t>(ggml_nelements(output_)));
  REQUIRE(device.get(output_, 0, std::as_writable_bytes(std::span(values)), 0));
  return values;
}

std::vector<float> TestProduct::expected() const {
  const auto k = weight_->ne[0], m = weight_->ne[1], n = input_->ne[1];
  std::vector<float> values;
  for (std::int64_t column = 0; column < n; ++column)
    for (std::int64_t row = 0; row < m; ++row) {
      float sum = 0;
      for (std::int64_t i = 0; i < k; ++i) sum += weight_at(row * k + i) * input_at(column * k + i);
      values.push_back(sum);
    }
  return values;
}

TestChain::TestChain(std::int64_t n, int length)
    : context_(no_alloc(static_cast<std::size_t>(length) + 4, static_cast<std::size_t>(length) + 4)) {
  weight_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, n, n);
  input_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, n, n);
  ggml_tensor* last = input_;
  for (int i = 0; i < length; ++i) products_.push_back(last = ggml_mul_mat(context_.get(), weight_, last));
  graph_ = ggml_new_graph_custom(context_.get(), static_cast<std::size_t>(length) + 4, false);
  ggml_build_forward_expand(graph_, last);
}

Bytes TestChain::bytes(const Device& device) const { return 4 * padded(device, weight_); }

void TestChain::bind(Device& device, const Arena& arena) {
  const Bytes step = padded(device, weight_);
  REQUIRE(arena.bind(weight_, 0));
  REQUIRE(arena.bind(input_, step));
  for (std::size_t i = 0; i < products_.size(); ++i) REQUIRE(arena.bind(products_[i], (2 + i % 2) * step));
  const std::vector<std::byte> zeros(ggml_nbytes(weight_));
  for (ggml_tensor* tensor : {weight_, input_}) REQUIRE(device.set(tensor, 0, zeros, 0, CancelToken{}));
}

}  // namespace sluice
