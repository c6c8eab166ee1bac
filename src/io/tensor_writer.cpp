#include "io/tensor_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/utf8.h"
#include "io/atomic_file.h"
#include "io/ranges.h"

namespace sluice {
namespace {

constexpr Bytes kLargestAlignment = MiB;

const char* file_name_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return "F64";
    case DType::f32: return "F32";
    case DType::f16: return "F16";
    case DType::bf16: return "BF16";
    case DType::f8_e4m3: return "F8_E4M3";
    case DType::f8_e5m2: return "F8_E5M2";
    case DType::i64: return "I64";
    case DType::i32: return "I32";
    case DType::i16: return "I16";
    case DType::i8: return "I8";
    case DType::u8: return "U8";
    case DType::boolean: return "BOOL";
    case DType::quantised: break;
  }
  return nullptr;
}

Status check(std::span<const TensorToWrite> tensors, const std::map<std::string, std::string>& metadata, Bytes alignment) {
  if (!std::has_single_bit(alignment) || alignment > kLargestAlignment)
    return fail(Code::invalid_argument,
                fmt::format("an alignment of {} is no power of two up to {}", alignment, kLargestAlignment));
  std::unordered_set<std::string_view> names;
  for (const auto& tensor : tensors) {
    const auto refuse = [&](const std::string& why) {
      return fail(Code::invalid_argument, fmt::format("tensor '{}' cannot be written: {}", printable(tensor.name), why));
    };
    if (tensor.name.empty() || !is_utf8(tensor.name)) return refuse("its name is empty or no UTF-8");
    if (tensor.name == "__metadata__" || tensor.name.starts_with("__pad.")) return refuse("its name is reserved");
    if (!names.insert(tensor.name).second) return refuse("the name is there twice");
    if (file_name_of(tensor.dtype) == nullptr) return refuse("safetensors has no block types");
    const auto size = tensor_bytes(tensor.dtype, GGML_TYPE_COUNT, tensor.shape);
    if (!size) return refuse(size.error().message);
    if (*size != tensor.data.size())
      return refuse(fmt::format("its shape needs {} bytes, {} are given", *size, tensor.data.size()));
  }
  for (const auto& [key, value] : metadata)
    if (!is_utf8(key) || !is_utf8(value))
      return fail(Code::invalid_argument, fmt::format("metadata '{}' cannot be written: it is no UTF-8", printable(key)));
  return {};
}

nlohmann::ordered_json entry(const char* dtype, nlohmann::ordered_json shape, Bytes begin, Bytes end) {
  return {{"dtype", dtype}, {"shape", std::move(shape)}, {"data_offsets", {begin, end}}};
}

}  // namespace

Status write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                         const std::map<std::string, std::string>& metadata, Bytes alignment) {
  SLUICE_TRY(check(tensors, metadata, alignment));
  auto header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  Bytes offset = 0;
  std::vector<Bytes> padding;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    const Bytes end = offset + tensor.data.size();
    header[tensor.name] =
        entry(file_name_of(tensor.dtype), std::vector<std::int64_t>(tensor.shape.rbegin(), tensor.shape.rend()), offset, end);
    const bool last = i + 1 == tensors.size();
    padding.push_back(last ? 0 : align_up(end, alignment) - end);
    if (padding.back() > 0)
      header[fmt::format("__pad.{}", i)] =
          entry("U8", nlohmann::ordered_json::array({padding.back()}), end, end + padding.back());
    offset = end + padding.back();
  }
  std::string text = header.dump();
  // Data begin at a multiple of 8 as the reference writer has it, or of `alignment`.
  text.resize(align_up(8 + text.size(), std::max<Bytes>(8, alignment)) - 8, ' ');

  SLUICE_ASSIGN(auto file, AtomicFile::create(path));
  std::array<std::byte, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::byte>(text.size() >> (8 * i));
  SLUICE_TRY(file.write(length));
  SLUICE_TRY(file.write(std::as_bytes(std::span(text))));
  const std::vector<std::byte> zeros(alignment);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    SLUICE_TRY(file.write(tensors[i].data));
    SLUICE_TRY(file.write(std::span(zeros).first(padding[i])));
  }
  return file.commit();
}

}  // namespace sluice
