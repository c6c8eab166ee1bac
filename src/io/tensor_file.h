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
  ggml_type ggml = GGML_TYPE_COUNT;  ///< set for GGUF tensors and for dtypes ggml knows; GGML_TYPE_COUNT otherwise
  std::vector<std::int64_t> shape;   ///< ggml order: fastest dimension first; empty for a scalar
  Bytes offset = 0;                  ///< from the start of the file
  Bytes size = 0;
  /// 1 for a scalar. Fits: no checked tensor has more than 2^63-1 elements.
  std::int64_t elements() const;
};

/// A parsed container: header in memory, data still in the file. Immutable, so shared freely between threads.
struct TensorFile {
  std::shared_ptr<const File> file;
  std::string format;                           ///< "safetensors" or "gguf"
  std::map<std::string, std::string> metadata;  ///< safetensors' __metadata__; GGUF's scalar and string keys as text
  std::vector<TensorInfo> tensors;              ///< in file order: by offset
  std::vector<std::string> unknown;   ///< names of tensors with a dtype this build cannot read: never read, an error if needed
  std::vector<std::string> warnings;  ///< e.g. trailing bytes; logged once by whoever opens the file
  /// nullptr when absent. Cost: one hash look-up.
  const TensorInfo* find(std::string_view name) const;

  std::unordered_map<std::string, std::size_t> index;  ///< name → place in `tensors`; filled by the readers
};

/// Opens safetensors or GGUF by content (not by suffix). Nothing but the header is read.
/// Errors: not_found, io, corrupt (names file, tensor, expected and declared bytes), unsupported (a format we know of but
/// cannot read). A safetensors dtype this build does not know is no error here: the tensor's range is checked, its name goes to
/// `unknown`. Who wants the file as a whole demands `unknown.empty()`; who wants one tensor asks `unknown` before saying
/// "missing". A GGUF type id this build does not know is an error, since the tensor's size cannot be known either.
Result<std::shared_ptr<const TensorFile>> open_tensor_file(const std::string& path, const FileSource& files);
/// The same for a file that is open already.
Result<std::shared_ptr<const TensorFile>> open_tensor_file(std::shared_ptr<const File> file);

/// Reads one tensor's raw bytes. `out.size()` must be `info.size`. Errors: io.
Status read_tensor(const TensorFile& file, const TensorInfo& info, std::span<std::byte> out);

}  // namespace sluice
