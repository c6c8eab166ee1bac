#include "residency/image_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <tuple>

#include "io/convert.h"

namespace sluice {
namespace {

/// Bytes between two looks at the cancel token where nothing limits a piece otherwise: milliseconds on a slow disk.
constexpr Bytes kPiece = 4 * MiB;
/// Largest gap between neighbours that is read along: GGUF and aligned safetensors pad to 32 or 64 bytes.
constexpr Bytes kPadding = 64;

Status cancelled() { return fail(Code::cancelled, "cancelled while reading weights"); }

std::span<std::byte> place(const BlockLayout::Tensor& tensor, std::span<std::byte> image) {
  return image.subspan(tensor.offset, tensor.size);
}

/// Calls `use(first element, elements, bytes from the weight's start, bytes)` for pieces of whole units of at most `most`
/// bytes.
template <typename Use>
Status for_pieces(const WeightRecipe& recipe, Bytes most, Use use) {
  const Bytes unit = recipe.unit_bytes();
  const Bytes step = std::max<Bytes>(1, most / unit);
  const Bytes units = recipe.bytes / unit;
  for (Bytes done = 0; done < units; done += step) {
    const Bytes n = std::min(step, units - done);
    SLUICE_TRY(use(static_cast<std::int64_t>(done) * recipe.unit_elements(),
                   static_cast<std::int64_t>(n) * recipe.unit_elements(), done * unit, n * unit));
  }
  return {};
}

/// The bytes of elements [first, first + count) in a tensor of `type`; both are whole blocks.
std::span<std::byte> elements_of(std::span<std::byte> tensor, ggml_type type, std::int64_t first, std::int64_t count) {
  const auto block = static_cast<Bytes>(ggml_blck_size(type));
  const Bytes size = ggml_type_size(type);
  return tensor.subspan(static_cast<Bytes>(first) / block * size, static_cast<Bytes>(count) / block * size);
}

/// Whether no tensor has bytes in [from, to) of the file: its tensors are in the order of their offsets and do not overlap.
bool is_padding(const TensorFile& file, Bytes from, Bytes to) {
  if (from >= to) return true;
  auto at = std::lower_bound(file.tensors.begin(), file.tensors.end(), to,
                             [](const TensorInfo& info, Bytes offset) { return info.offset < offset; });
  while (at != file.tensors.begin()) {
    --at;
    if (at->size > 0) return at->offset + at->size <= from;
  }
  return true;
}

}  // namespace

std::vector<ReadRun> plan_reads(std::span<const WeightRecipe> recipes, const BlockLayout& layout, Bytes most,
                                const std::vector<bool>& skip) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < recipes.size(); ++i)
    if (!layout.tensors[i].apart && (skip.empty() || !skip[i])) order.push_back(i);
  const auto key = [&](std::size_t i) {
    return std::tuple<const std::string&, Bytes, Bytes>(recipes[i].file->file->path(), recipes[i].begin,
                                                        layout.tensors[i].offset);
  };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });

  std::vector<ReadRun> runs;
  for (std::size_t n = 0; n < order.size(); ++n) {
    const WeightRecipe& recipe = recipes[order[n]];
    const File* file = recipe.file->file.get();
    if (n > 0 && layout.tensors[order[n]].offset == layout.tensors[order[n - 1]].offset) continue;  // tied: one place, one read
    ReadRun* last = runs.empty() ? nullptr : &runs.back();
    if (last && last->file == file && recipe.begin >= last->end && recipe.begin - last->end < kPadding &&
        recipe.end() - last->begin <= most && is_padding(*recipe.file, last->end, recipe.begin)) {
      last->end = recipe.end();
      last->weights.push_back(order[n]);
    } else {
      runs.push_back({file, recipe.begin, recipe.end(), {order[n]}});
    }
  }
  return runs;
}

Bytes scratch_size(std::span<const WeightRecipe> recipes) {
  Bytes sum = 0;
  for (const auto& recipe : recipes) sum += std::min(recipe.bytes + kPadding, Scratch::kMost);
  return std::min(sum, Scratch::kMost);
}

Status read_image(std::span<const WeightRecipe> recipes, const BlockLayout& layout, bool uncached, Scratch& scratch,
                  std::span<std::byte> image, const CancelToken& cancel, std::atomic<Bytes>& bytes_read,
                  const std::vector<bool>& skip) {
  assert(image.size() == layout.size);
  const auto read = [&](const File& file, Bytes offset, std::span<std::byte> out) -> Status {
    if (cancel.cancelled()) return cancelled();
    SLUICE_TRY(uncached ? file.read_at_uncached(offset, out) : file.read_at(offset, out));
    bytes_read.fetch_add(out.size(), std::memory_order_relaxed);
    return {};
  };
  clear_padding(layout, image);
  const Bytes most = scratch.size();
  for (const ReadRun& run : plan_reads(recipes, layout, most, skip)) {
    if (run.weights.size() > 1) {
      const std::lock_guard lock(scratch.mutex);
      const auto bytes = std::span(scratch.bytes).first(run.end - run.begin);
      SLUICE_TRY(read(*run.file, run.begin, bytes));
      for (std::size_t i : run.weights)
        SLUICE_TRY(convert(recipes[i].info(), bytes.subspan(recipes[i].begin - run.begin, recipes[i].bytes),
                           recipes[i].elements, recipes[i].type, place(layout.tensors[i], image)));
      continue;
    }
    const std::size_t i = run.weights.front();
    const WeightRecipe& recipe = recipes[i];
    const auto out = place(layout.tensors[i], image);
    const auto straight = [&](std::int64_t, std::int64_t, Bytes from, Bytes size) {
      return read(*run.file, recipe.begin + from, out.subspan(from, size));
    };
    const auto converted = [&](std::int64_t first, std::int64_t count, Bytes from, Bytes size) -> Status {
      const std::lock_guard lock(scratch.mutex);
      const auto bytes = std::span(scratch.bytes).first(size);
      SLUICE_TRY(read(*run.file, recipe.begin + from, bytes));
      return convert(recipe.info(), bytes, count, recipe.type, elements_of(out, recipe.type, first, count));
    };
    const auto filled = recipe.identity ? for_pieces(recipe, kPiece, straight) : for_pieces(recipe, most, converted);
    if (!filled) return filled;
  }
  return {};
}

Status copy_image(std::span<const WeightRecipe> recipes, const BlockLayout& layout,
                  std::span<const std::span<const std::byte>> files, std::span<std::byte> image, const CancelToken& cancel) {
  assert(image.size() == layout.size);
  clear_padding(layout, image);
  for (std::size_t i = 0; i < recipes.size(); ++i) {
    if (layout.tensors[i].apart) continue;
    const WeightRecipe& recipe = recipes[i];
    const auto out = place(layout.tensors[i], image);
    SLUICE_TRY(for_pieces(recipe, kPiece, [&](std::int64_t first, std::int64_t count, Bytes from, Bytes size) -> Status {
      if (cancel.cancelled()) return cancelled();
      return convert(recipe.info(), files[i].subspan(recipe.begin + from, size), count, recipe.type,
                     elements_of(out, recipe.type, first, count));
    }));
  }
  return {};
}

}  // namespace sluice
