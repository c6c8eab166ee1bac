#include "support/f32_model.h"

#include "io/convert.h"
#include "io/tensor_file.h"
#include "io/tensor_writer.h"
#include "support/rig.h"

namespace sluice::test {

Status write_f32_model(const std::string& path) {
  SLUICE_ASSIGN(const auto file, open_tensor_file(kDemoModel, *system_files()));
  std::vector<std::vector<std::byte>> data;
  std::vector<TensorToWrite> tensors;
  for (const auto& info : file->tensors) {
    std::vector<std::byte> raw(info.size), wide(static_cast<std::size_t>(info.elements()) * sizeof(float));
    SLUICE_TRY(read_tensor(*file, info, raw));
    SLUICE_TRY(convert(info, raw, info.elements(), GGML_TYPE_F32, wide));
    data.push_back(std::move(wide));
    tensors.push_back({info.name, DType::f32, info.shape, data.back()});
  }
  return write_safetensors(path, tensors, file->metadata, 64);
}

}  // namespace sluice::test
