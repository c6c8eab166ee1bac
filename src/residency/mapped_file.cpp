#include "residency/mapped_file.h"

#include <cstdint>

#include "ggml-backend.h"

namespace sluice {

Result<std::shared_ptr<MappedFile>> MappedFile::open(std::shared_ptr<const File> file) {
  SLUICE_ASSIGN(auto mapping, file->map());
  return std::shared_ptr<MappedFile>(new MappedFile(std::move(file), std::move(mapping)));
}

bool MappedFile::aligned(Bytes offset, Bytes alignment) const {
  const auto base = reinterpret_cast<std::uintptr_t>(bytes().data());
  return base % alignment == 0 && offset % alignment == 0;
}

bool MappedFile::map_on(Device& device) {
  auto found = buffers_.find(&device);
  if (found == buffers_.end()) {
    auto buffer = device.map_host(bytes());
    found = buffers_.emplace(&device, buffer ? *std::move(buffer) : DeviceBuffer{}).first;
  }
  return found->second != nullptr;
}

Status MappedFile::bind(const Device& device, ggml_tensor* tensor, Bytes offset) {
  const auto found = buffers_.find(&device);
  if (found == buffers_.end() || !found->second)
    return fail(Code::device_failed, file_->path() + ": " + device.info().name + " has no buffer over the mapping");
  auto* base = static_cast<char*>(ggml_backend_buffer_get_base(found->second.get()));
  if (ggml_backend_tensor_alloc(found->second.get(), tensor, base + offset) != GGML_STATUS_SUCCESS)
    return fail(Code::device_failed, file_->path() + ": ggml could not bind '" + tensor->name + "' to the mapping");
  return {};
}

}  // namespace sluice
