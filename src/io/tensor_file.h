#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/dtype.h"
#include "io/file.h"

namespace sluice {

/// One tensor as a file declares it; every range was checked against the real file size before this value existed.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  ggml_type ggml = GGML_TYPE_COUNT;        ///< set for GGUF tensors and for dtypes ggml knows; GGML_TYPE_COUNT otherwise
  std::vector<std::int64_t> shape;         ///< ggml order: fastest dimension first; empty for a scalar
  Bytes offset = 0;                        ///< from the start of the file
  Bytes size = 0;
  std::int64_t elements() const;
};

/// A parsed container: header in memory, data still in the file. Immutable, so shared freely between threads.
struct TensorFile {
  std::shared_ptr<const File> file;
  std::string format;                          ///< "safetensors" or "gguf"
  std::map<std::string, std::string> metadata; ///< safetensors' __metadata__; GGUF's scalar and string keys as text
  std::vector<TensorInfo> tensors;             ///< in file order
  std::vector<std::string> unknown;            ///< names of tensors with a dtype this build cannot read: never read, an error if needed
  std::vector<std::string> warnings;           ///< e.g. trailing bytes; logged once by whoever opens the file
  /// nullptr when absent. Cost: one hash look-up.
  const TensorInfo* find(std::string_view name) const;

  std::unordered_map<std::string, std::size_t> index;  ///< name → place in `tensors`; filled by the readers
};

/// Opens safetensors or GGUF by content (not by suffix). Nothing but the header is read.
/// Errors: not_found, io, corrupt (names file, tensor, expected and declared bytes), unsupported (a format we know of but cannot read).
Result<std::shared_ptr<const TensorFile>> open_tensor_file(const std::string& path, const FileSource& files);

/// Reads one tensor's raw bytes. `out.size()` must be `info.size`. Errors: io.
Status read_tensor(const TensorFile& file, const TensorInfo& info, std::span<std::byte> out);

}  // namespace sluice
