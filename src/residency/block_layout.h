#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "device/device.h"
#include "nn/model.h"
#include "residency/weight_recipe.h"

namespace sluice {

/// A block's device image: its tensors one after another at alloc-size-rounded offsets, padding zero. The host copy is byte for
/// byte this. Weights of one block that are tied (same bytes, same type, same shape) share one place.
struct BlockLayout {
  struct Tensor {
    ggml_type type = GGML_TYPE_F32;
    std::vector<std::int64_t> shape;
    Bytes offset = 0, size = 0;  ///< size without padding
    bool identity = false;       ///< the file's bytes are the image's bytes
    bool apart = false;          ///< not in the image: its rows lie spread over several devices; `offset` means nothing
    bool operator==(const Tensor&) const = default;
  };
  std::vector<Tensor> tensors;  ///< parallel to Block::weights
  Bytes size = 0;               ///< multiple of the device's alignment; 0 for a block without weights
  /// An empty buffer of the kind that those apart lie in, to ask the device with; none: there are none.
  std::shared_ptr<ggml_backend_buffer> apart_in;
  bool raw = true;  ///< the device takes the image as one run of bytes (Device::raw_images); else tensor by tensor
};

/// Lays a block's weights out for `device`. `recipes` are parallel to `block.weights` and were resolved against them.
/// `apart`: per weight, whether it is; empty: none is. Pure on the device's buffer type; allocates metadata only.
BlockLayout lay_out_block(const Block& block, std::span<const WeightRecipe> recipes, const Device& device,
                          const std::vector<bool>& apart = {});

/// Whether images of the two are byte for byte the same.
bool same_image(const BlockLayout& a, const BlockLayout& b);

/// Makes the bytes of `image` (layout.size of them) that belong to no tensor zero.
void clear_padding(const BlockLayout& layout, std::span<std::byte> image);

}  // namespace sluice
