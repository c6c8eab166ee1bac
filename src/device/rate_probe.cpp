#include "device/rate_probe.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace sluice {
namespace {

constexpr double kSecondsEach = 0.015;  // for each of three measurements

/// The shortest of at most 50 runs, of as many as fit kSecondsEach, at least one.
template <typename Body>
double best_seconds(Body body) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  body();  // compiles kernels, touches pages
  double best = std::numeric_limits<double>::max();
  const auto first = Clock::now();
  for (int run = 0; run < 50 && (run == 0 || seconds_since(first) < kSecondsEach); ++run) {
    const auto start = Clock::now();
    body();
    best = std::min(best, seconds_since(start));
  }
  return std::max(best, 1e-9);
}

}  // namespace

double round_rate(double rate) {
  if (!(rate > 0) || !std::isfinite(rate)) return rate;
  const double scale = std::pow(10.0, std::floor(std::log10(rate)) - 1);
  return std::round(rate / scale) * scale;
}

Result<Device::Rates> probe_rates(ggml_backend_t backend, ggml_backend_buffer_type_t buffer_type, RateProbeSize size) {
  ggml_context_ptr context{ggml_init({.mem_size = 8 * ggml_tensor_overhead() + ggml_graph_overhead_custom(8, false),
                                      .mem_buffer = nullptr,
                                      .no_alloc = true})};
  ggml_tensor* a = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, size.matrix, size.matrix);
  ggml_tensor* b = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, size.matrix, size.matrix);
  ggml_tensor* copied = ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, static_cast<std::int64_t>(size.copy));
  ggml_tensor* product = ggml_mul_mat(context.get(), a, b);
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), 8, false);
  ggml_build_forward_expand(graph, product);

  ggml_backend_buffer_ptr buffer{ggml_backend_buft_alloc_buffer(buffer_type, static_cast<std::size_t>(size.bytes()))};
  if (!buffer) return fail(Code::device_oom, "no room to measure the device's rates", size.bytes());
  auto* at = static_cast<char*>(ggml_backend_buffer_get_base(buffer.get()));
  for (ggml_tensor* tensor : {a, b, product, copied}) {
    if (ggml_backend_tensor_alloc(buffer.get(), tensor, at) != GGML_STATUS_SUCCESS)
      return fail(Code::device_failed, "cannot bind a tensor to measure the device's rates");
    at += ggml_nbytes(tensor);
  }
  const std::vector<float> ones(static_cast<std::size_t>(size.matrix) * static_cast<std::size_t>(size.matrix), 1.0F);
  const std::vector<std::byte> bytes(static_cast<std::size_t>(size.copy));
  for (ggml_tensor* tensor : {a, b}) ggml_backend_tensor_set(tensor, ones.data(), 0, ones.size() * sizeof(float));

  const double copy_s = best_seconds([&] { ggml_backend_tensor_set(copied, bytes.data(), 0, bytes.size()); });
  const double small_s = best_seconds([&] { ggml_backend_tensor_set(copied, bytes.data(), 0, 64); });
  bool failed = false;
  const double product_s = best_seconds([&] { failed |= ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS; });
  if (failed) return fail(Code::device_failed, "the device failed a product of two matrices");
  const double n = size.matrix;
  return Device::Rates{.link_bytes_per_s = round_rate(static_cast<double>(size.copy) / copy_s),
                       .link_latency_s = round_rate(small_s),
                       .flops_per_s = round_rate(2 * n * n * n / product_s)};
}

}  // namespace sluice
