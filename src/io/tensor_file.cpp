#include "io/tensor_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "io/gguf.h"
#include "io/safetensors.h"

namespace sluice {

std::int64_t TensorInfo::elements() const {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return count;
}

const TensorInfo* TensorFile::find(std::string_view name) const {
  const auto found = index.find(std::string(name));
  return found == index.end() ? nullptr : &tensors[found->second];
}

Result<std::shared_ptr<const TensorFile>> open_tensor_file(const std::string& path, const FileSource& files) {
  SLUICE_ASSIGN(auto file, files.open(path));
  return open_tensor_file(std::move(file));
}

Result<std::shared_ptr<const TensorFile>> open_tensor_file(std::shared_ptr<const File> file) {
  std::array<char, 16> start{};
  const auto length = static_cast<std::size_t>(std::min<Bytes>(start.size(), file->size()));
  SLUICE_TRY(file->read_at(0, std::as_writable_bytes(std::span(start).first(length))));
  const std::string_view head(start.data(), length);
  if (head.starts_with("GGUF")) return open_gguf(std::move(file));
  // Before the others: a length field may look like any of them, but none of them has a brace here.
  if (length > 8 && head[8] == '{') return open_safetensors(file);

  const auto refuse = [&](const char* what) { return fail(Code::unsupported, fmt::format("{}: {}", file->path(), what)); };
  if (head.starts_with("PK\x03\x04") || head.starts_with("\x80\x02"))
    return refuse("this is a torch checkpoint (pickle), which cannot be read: convert it to safetensors");
  if (head.starts_with("lmgg") || head.starts_with("tjgg") || head.starts_with("fmgg"))
    return refuse("this is an old ggml file from before GGUF: convert it anew");
  if (head.starts_with("version https://"))
    return refuse("this is a Git LFS pointer, not the file itself: fetch it with 'git lfs pull'");
  if (head.starts_with("<!") || head.starts_with("<html") || head.starts_with("<HTML"))
    return refuse("this is a web page: the download gave a page instead of the file");
  return open_safetensors(file);
}

Status read_tensor(const TensorFile& file, const TensorInfo& info, std::span<std::byte> out) {
  if (out.size() != info.size)
    return fail(Code::invalid_argument,
                fmt::format("tensor '{}' has {} bytes, the space given is {}", printable(info.name), info.size, out.size()),
                info.size, out.size());
  auto status = file.file->read_at(info.offset, out);
  if (!status) return fail_while(fmt::format("tensor '{}'", printable(info.name)), std::move(status).error());
  return {};
}

}  // namespace sluice
