#include "io/ranges.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_set>

#include "base/utf8.h"

namespace sluice {
namespace {

struct Range {
  Bytes begin, end;
  std::size_t claim;
};

}  // namespace

Result<Bytes> tensor_bytes(DType dtype, ggml_type ggml, const std::vector<std::int64_t>& shape) {
  Bytes unit = dtype_size(dtype), per_unit = 1;
  if (dtype == DType::quantised) {
    unit = ggml_type_size(ggml);
    per_unit = static_cast<Bytes>(ggml_blck_size(ggml));
    const std::int64_t row = shape.empty() ? 1 : shape[0];
    if (row % static_cast<std::int64_t>(per_unit) != 0)
      return fail(Code::corrupt, fmt::format("its rows of {} elements are no whole number of {} blocks of {}", row,
                                             ggml_type_name(ggml), per_unit));
  }
  Bytes count = 1;
  bool empty = false;
  for (const std::int64_t n : shape) {
    if (n < 0) return fail(Code::corrupt, fmt::format("it has a negative dimension ({})", n));
    empty = empty || n == 0;
    if (!checked_mul(count, std::max<Bytes>(1, static_cast<Bytes>(n)), count) ||
        count > static_cast<Bytes>(std::numeric_limits<std::int64_t>::max()))
      return fail(Code::corrupt, "its shape has more than 2^63-1 elements");
  }
  Bytes size = 0;
  if (!checked_mul(empty ? 0 : count / per_unit, unit, size))
    return fail(Code::corrupt, "its shape needs more than 2^64-1 bytes");
  return size;
}

Status admit_tensors(TensorFile& into, std::vector<TensorClaim> claims, Bytes data_begin, Bytes alignment) {
  const Bytes file_size = into.file->size();
  const auto refuse = [&](const TensorClaim& claim, const std::string& why, Bytes needed = 0, Bytes available = 0) {
    return fail(Code::corrupt, fmt::format("{}: tensor '{}': {}", into.file->path(), printable(claim.name), why), needed,
                available);
  };
  std::vector<Range> ranges;
  ranges.reserve(claims.size());
  std::unordered_set<std::string_view> names;
  names.reserve(claims.size());
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const TensorClaim& claim = claims[i];
    if (!names.insert(claim.name).second) return refuse(claim, "the name is there twice");
    Bytes size = 0;
    if (claim.dtype) {
      auto computed = tensor_bytes(*claim.dtype, claim.ggml, claim.shape);
      if (!computed) return refuse(claim, computed.error().message);
      size = *computed;
    }
    if (claim.end) {
      if (*claim.end < claim.begin)
        return refuse(claim, fmt::format("its data ends at {}, before it begins at {}", *claim.end, claim.begin));
      const Bytes declared = *claim.end - claim.begin;
      if (claim.dtype && declared != size)
        return refuse(claim,
                      fmt::format("shape and dtype {} need {} bytes, the header declares {}", printable(claim.dtype_text), size,
                                  declared),
                      size, declared);
      size = declared;
    }
    Range range{.begin = 0, .end = 0, .claim = i};
    if (!checked_add(data_begin, claim.begin, range.begin) || !checked_add(range.begin, size, range.end))
      return refuse(claim, fmt::format("its offsets overflow (begin {}, {} bytes)", claim.begin, size));
    if (range.end > file_size)
      return refuse(claim,
                    fmt::format("its bytes {} to {} reach past the end of the file at {}", range.begin, range.end, file_size),
                    range.end, file_size);
    ranges.push_back(range);
  }

  // By offset; an empty tensor goes before the one that begins in the same place.
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.begin, a.end, a.claim) < std::tie(b.begin, b.end, b.claim);
  });
  Bytes covered = std::min(data_begin, file_size);
  const Range* last = nullptr;
  Bytes holes = 0;
  for (const Range& range : ranges) {
    if (range.begin == range.end) continue;
    if (last != nullptr && range.begin < last->end)
      return refuse(claims[range.claim], fmt::format("its bytes {} to {} overlap those of '{}' ({} to {})", range.begin,
                                                     range.end, printable(claims[last->claim].name), last->begin, last->end));
    if (range.begin - covered >= alignment) holes += range.begin - covered;
    covered = range.end;
    last = &range;
  }
  if (holes > 0) into.warnings.push_back(fmt::format("{}: {} bytes between tensors belong to none", into.file->path(), holes));
  if (file_size - covered >= alignment)
    into.warnings.push_back(
        fmt::format("{}: {} bytes after the last tensor belong to none", into.file->path(), file_size - covered));

  into.tensors.reserve(ranges.size());
  for (const Range& range : ranges) {
    TensorClaim& claim = claims[range.claim];
    if (!claim.dtype) {
      into.warnings.push_back(fmt::format("{}: tensor '{}' has the unknown dtype '{}' and is skipped", into.file->path(),
                                          printable(claim.name), printable(claim.dtype_text)));
      into.unknown.push_back(claim.name);
      continue;
    }
    TensorInfo info;
    info.name = claim.name;
    info.dtype = *claim.dtype;
    info.ggml = *claim.dtype == DType::quantised ? claim.ggml : dtype_to_ggml(*claim.dtype).value_or(GGML_TYPE_COUNT);
    info.shape = std::move(claim.shape);
    info.offset = range.begin;
    info.size = range.end - range.begin;
    into.index.emplace(info.name, into.tensors.size());
    into.tensors.push_back(std::move(info));
  }
  return {};
}

}  // namespace sluice
