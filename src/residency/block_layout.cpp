#include "residency/block_layout.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace sluice {
namespace {

/// What the tensor takes in a buffer of `type`, which may be more than its bytes (some backends pad the last row).
Bytes alloc_size(ggml_backend_buffer_type_t type, const BlockLayout::Tensor& tensor) {
  const ggml_context_ptr context{ggml_init({ggml_tensor_overhead(), nullptr, /*no_alloc=*/true})};
  const ggml_tensor* t =
      ggml_new_tensor(context.get(), tensor.type, static_cast<int>(tensor.shape.size()), tensor.shape.data());
  return ggml_backend_buft_get_alloc_size(type, t);
}

Bytes tensor_size(const BlockLayout::Tensor& tensor) {
  std::int64_t rows = 1;
  for (std::size_t i = 1; i < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  return static_cast<Bytes>(rows) * ggml_row_size(tensor.type, tensor.shape[0]);
}

}  // namespace

BlockLayout lay_out_block(const Block& block, std::span<const WeightRecipe> recipes, const Device& device,
                          const std::vector<bool>& apart) {
  assert(recipes.size() == block.weights.size());
  BlockLayout layout;
  layout.tensors.reserve(recipes.size());
  for (std::size_t i = 0; i < recipes.size(); ++i) {
    const WeightRecipe& recipe = recipes[i];
    BlockLayout::Tensor tensor{recipe.type, block.weights[i].shape, layout.size, 0, recipe.identity};
    tensor.size = tensor_size(tensor);
    if (!apart.empty() && apart[i]) {
      tensor.apart = true;
      tensor.offset = 0;
      layout.tensors.push_back(std::move(tensor));
      continue;
    }
    layout.raw = layout.raw && device.raw_images(tensor.type);
    std::size_t tied = 0;
    while (tied < i &&
           !(!layout.tensors[tied].apart && recipes[tied].same_bytes(recipe) && layout.tensors[tied].shape == tensor.shape))
      ++tied;
    if (tied < i)
      tensor.offset = layout.tensors[tied].offset;
    else
      layout.size += align_up(std::max(tensor.size, alloc_size(device.buffer_type(), tensor)), device.info().alignment);
    layout.tensors.push_back(std::move(tensor));
  }
  return layout;
}

bool same_image(const BlockLayout& a, const BlockLayout& b) { return a.size == b.size && a.tensors == b.tensors; }

void clear_padding(const BlockLayout& layout, std::span<std::byte> image) {
  assert(image.size() == layout.size);
  const auto clear = [&](Bytes from, Bytes to) {
    if (from < to) std::memset(image.data() + from, 0, to - from);
  };
  Bytes covered = 0;
  for (const auto& tensor : layout.tensors) {
    if (tensor.apart) continue;
    clear(covered, tensor.offset);
    covered = std::max(covered, tensor.offset + tensor.size);
  }
  clear(covered, layout.size);
}

}  // namespace sluice
