#include "device/probe.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "ggml-cpp.h"

namespace sluice {
namespace {

constexpr std::int64_t kColumns = 256;  // one block of the widest quantised types
constexpr std::int64_t kRows[2] = {12, 8};
constexpr std::int64_t kBatch = 3;

/// Numbers in [−1, 1) that differ from place to place and fill to fill, the same on every machine.
std::vector<float> numbers(std::int64_t count, unsigned fill) {
  std::vector<float> out(static_cast<std::size_t>(count));
  std::uint32_t state = 0x9E3779B9U * (fill + 1);
  for (float& x : out) {
    state = state * 1664525U + 1013904223U;
    x = static_cast<float>(static_cast<std::int32_t>(state >> 8) - (1 << 23)) / static_cast<float>(1 << 23);
  }
  return out;
}

std::vector<std::byte> quantised(ggml_type type, std::int64_t rows, unsigned fill) {
  const auto values = numbers(rows * kColumns, fill);
  std::vector<std::byte> out(ggml_row_size(type, kColumns) * static_cast<std::size_t>(rows));
  ggml_quantize_chunk(type, values.data(), out.data(), 0, rows, kColumns, nullptr);
  return out;
}

/// Two weights with the same activations: what the two ways of uploading are compared on.
struct Products {
  ggml_tensor *weight[2], *product[2];
  ggml_cgraph* graph;
};

Products build(ggml_context* context, ggml_type type, ggml_tensor* activations) {
  Products made{};
  made.graph = ggml_new_graph_custom(context, 16, false);
  for (int i = 0; i < 2; ++i) {
    made.weight[i] = ggml_new_tensor_2d(context, type, kColumns, kRows[i]);
    made.product[i] = ggml_mul_mat(context, made.weight[i], activations);
    ggml_build_forward_expand(made.graph, made.product[i]);
  }
  return made;
}

Result<std::vector<std::byte>> run(ggml_backend_t backend, const Products& products) {
  if (ggml_backend_graph_compute(backend, products.graph) != GGML_STATUS_SUCCESS)
    return fail(Code::device_failed, "the device failed a product while weight uploads were probed");
  std::vector<std::byte> out;
  for (const ggml_tensor* product : products.product) {
    const std::size_t at = out.size();
    out.resize(at + ggml_nbytes(product));
    ggml_backend_tensor_get(product, out.data() + at, 0, ggml_nbytes(product));
  }
  return out;
}

}  // namespace

Result<bool> probe_raw_images(ggml_backend_t backend, ggml_backend_buffer_type_t buffer_type, ggml_type type) {
  if (std::ranges::find(kWeightTypes, type) == kWeightTypes.end() || ggml_quantize_requires_imatrix(type)) return false;
  ggml_context_ptr context{ggml_init({.mem_size = 32 * ggml_tensor_overhead() + 2 * ggml_graph_overhead_custom(16, false),
                                      .mem_buffer = nullptr,
                                      .no_alloc = true})};
  ggml_tensor* activations = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, kColumns, kBatch);
  const Products apart = build(context.get(), type, activations), slotted = build(context.get(), type, activations);
  for (const ggml_tensor* product : apart.product)
    if (!ggml_backend_dev_supports_op(ggml_backend_get_device(backend), product)) return false;

  const Bytes alignment = ggml_backend_buft_get_alignment(buffer_type);
  const auto padded = [&](const ggml_tensor* t) {
    return align_up(ggml_backend_buft_get_alloc_size(buffer_type, t), alignment);
  };
  const Bytes offsets[2] = {0, padded(slotted.weight[0])};
  const Bytes image_size = offsets[1] + padded(slotted.weight[1]);
  ggml_tensor* slot = ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, static_cast<std::int64_t>(image_size));

  std::vector<std::pair<ggml_tensor*, Bytes>> places;
  Bytes end = 0;
  const auto place = [&](ggml_tensor* t) {
    places.emplace_back(t, end);
    end += padded(t);
  };
  for (int i = 0; i < 2; ++i) {
    place(apart.weight[i]);
    place(apart.product[i]);
    place(slotted.product[i]);
  }
  place(activations);
  const Bytes slot_start = end;
  place(slot);
  for (int i = 0; i < 2; ++i) places.emplace_back(slotted.weight[i], slot_start + offsets[i]);
  if (end > kProbeBytes) return false;

  ggml_backend_buffer_ptr buffer{ggml_backend_buft_alloc_buffer(buffer_type, static_cast<std::size_t>(end))};
  if (!buffer) return fail(Code::device_oom, "no room to probe weight uploads", end);
  auto* base = static_cast<char*>(ggml_backend_buffer_get_base(buffer.get()));
  for (const auto& [tensor, at] : places)
    if (ggml_backend_tensor_alloc(buffer.get(), tensor, base + at) != GGML_STATUS_SUCCESS)
      return fail(Code::device_failed, "the device could not bind a tensor while weight uploads were probed");
  const auto inputs = numbers(kColumns * kBatch, 99);
  ggml_backend_tensor_set(activations, inputs.data(), 0, ggml_nbytes(activations));

  const std::vector<std::byte> poison(static_cast<std::size_t>(image_size), std::byte{0xFF});
  for (unsigned fill = 0; fill < 3; ++fill) {
    std::vector<std::byte> image(static_cast<std::size_t>(image_size));
    for (int i = 0; i < 2; ++i) {
      const auto bytes = quantised(type, kRows[i], 2 * fill + static_cast<unsigned>(i));
      ggml_backend_tensor_set(apart.weight[i], bytes.data(), 0, bytes.size());
      std::memcpy(image.data() + offsets[i], bytes.data(), bytes.size());
    }
    ggml_backend_tensor_set(slot, poison.data(), 0, poison.size());
    ggml_backend_tensor_set(slot, image.data(), 0, image.size());
    SLUICE_ASSIGN(const auto expected, run(backend, apart));
    SLUICE_ASSIGN(const auto got, run(backend, slotted));
    if (expected != got) return false;
  }
  return true;
}

}  // namespace sluice
