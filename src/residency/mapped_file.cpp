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

Status MappedFile::bind(ggml_tensor* tensor, Bytes offset) {
  // ggml's interface has no const buffers; a write through this one would fault, as it should.
  auto* base = const_cast<std::byte*>(bytes().data());
  if (!buffer_) {
    buffer_.reset(ggml_backend_cpu_buffer_from_ptr(base, bytes().size()));
    if (!buffer_) return fail(Code::device_failed, file_->path() + ": ggml made no buffer over the mapping");
  }
  if (ggml_backend_tensor_alloc(buffer_.get(), tensor, base + offset) != GGML_STATUS_SUCCESS)
    return fail(Code::device_failed, file_->path() + ": ggml could not bind '" + tensor->name + "' to the mapping");
  return {};
}

}  // namespace sluice
