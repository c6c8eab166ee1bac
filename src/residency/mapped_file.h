#pragma once

#include <map>
#include <memory>

#include "device/device.h"
#include "io/file.h"

namespace sluice {

/// A file's mapping, and for each device that uses it in place the buffer over it that weights are bound to. One per file and
/// store; goes before the devices.
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
  /// Makes the device's buffer over the mapping, once; whether there is one. Not thread safe.
  bool map_on(Device& device);
  /// Binds a tensor without memory to the bytes at `offset`, which is aligned and has the tensor's size inside the file, on a
  /// device with a buffer. The pages are read-only: weights are never written. Errors: device_failed. Not thread safe.
  Status bind(const Device& device, ggml_tensor* tensor, Bytes offset);

 private:
  MappedFile(std::shared_ptr<const File> file, std::shared_ptr<const Mapping> mapping)
      : file_(std::move(file)), mapping_(std::move(mapping)) {}
  std::shared_ptr<const File> file_;
  std::shared_ptr<const Mapping> mapping_;
  std::map<const Device*, DeviceBuffer> buffers_;  // null: the device was asked and cannot
};

}  // namespace sluice
