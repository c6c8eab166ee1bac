#pragma once

#include <memory>

#include "ggml-cpp.h"
#include "io/file.h"

namespace sluice {

/// A file's mapping, and the ggml buffer over it that weights used in place are bound to. One per file and store.
class MappedFile {
 public:
  /// Errors: io.
  static Result<std::shared_ptr<MappedFile>> open(std::shared_ptr<const File> file);

  const File* file() const { return file_.get(); }
  std::span<const std::byte> bytes() const { return mapping_->bytes(); }
  /// Tells the system that the range is not needed for now.
  void drop(Bytes offset, Bytes size) const { mapping_->drop(offset, size); }
  /// Asks the system to read the range ahead.
  void will_need(Bytes offset, Bytes size) const { mapping_->will_need(offset, size); }
  /// Whether a tensor may lie at `offset`: ggml wants its buffers' base and tensors aligned.
  bool aligned(Bytes offset, Bytes alignment) const;
  /// Binds a tensor without memory to the bytes at `offset`, which is aligned and has the tensor's size inside the file.
  /// The pages are read-only: weights are never written. Errors: device_failed. Not thread safe.
  Status bind(ggml_tensor* tensor, Bytes offset);

 private:
  MappedFile(std::shared_ptr<const File> file, std::shared_ptr<const Mapping> mapping)
      : file_(std::move(file)), mapping_(std::move(mapping)) {}
  std::shared_ptr<const File> file_;
  std::shared_ptr<const Mapping> mapping_;
  ggml_backend_buffer_ptr buffer_;  // made at the first bind
};

}  // namespace sluice
