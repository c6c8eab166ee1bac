#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "io/convert.h"
#include "io/memory_file.h"
#include "io/tensor_file.h"

namespace sluice::fuzz {

/// Does with `bytes` what a loader would: opens them with `open`, reads every tensor, converts it. Whatever the validator let
/// through must then work: a failure is a finding, as a crash is.
template <typename Open>
void use_tensor_file(const std::uint8_t* data, std::size_t size, Open open) {
  const auto* first = reinterpret_cast<const std::byte*>(data);
  const auto opened = open(memory_file("fuzz", {first, first + size}));
  if (!opened) return;
  const TensorFile& file = **opened;
  for (const TensorInfo& info : file.tensors) {
    std::vector<std::byte> raw(info.size);
    if (file.find(info.name) != &info || !read_tensor(file, info, raw)) std::abort();
    for (const ggml_type to : {GGML_TYPE_F32, GGML_TYPE_F16}) {
      if (!convertible(info, to)) continue;
      std::vector<std::byte> out(static_cast<std::size_t>(info.elements()) * ggml_type_size(to));
      if (!convert(info, raw, info.elements(), to, out)) std::abort();
    }
  }
}

}  // namespace sluice::fuzz
