#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/utf8.h"
#include "io/ranges.h"

namespace sluice {
namespace {

// The reference implementation's own limit; the largest headers in the wild are a few MB.
constexpr Bytes kLargestHeader = 100'000'000;
constexpr std::size_t kDeepest = 16;

std::optional<DType> parse_dtype(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, DType>, 12> kNames{{{"F64", DType::f64},
                                                                              {"F32", DType::f32},
                                                                              {"F16", DType::f16},
                                                                              {"BF16", DType::bf16},
                                                                              {"F8_E4M3", DType::f8_e4m3},
                                                                              {"F8_E5M2", DType::f8_e5m2},
                                                                              {"I64", DType::i64},
                                                                              {"I32", DType::i32},
                                                                              {"I16", DType::i16},
                                                                              {"I8", DType::i8},
                                                                              {"U8", DType::u8},
                                                                              {"BOOL", DType::boolean}}};
  for (const auto& [name, dtype] : kNames)
    if (name == text) return dtype;
  return std::nullopt;
}

/// Reads the header event by event: memory stays proportional to the header, nesting costs no stack, and a key that comes twice
/// is seen (a parsed tree would have lost one of the two).
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<TensorClaim> claims;
  std::map<std::string, std::string> metadata;
  std::string trouble;  ///< set when a handler returned false

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a truth value"); }
  bool number_float(double, const std::string& text) override { return value("the number " + text); }
  bool binary(binary_t&) override { return value("binary data"); }

  bool number_integer(std::int64_t number) override {
    if (skipping()) return true;
    if (where_ == Where::shape) return refuse(fmt::format("it has a negative dimension ({})", number));
    if (where_ == Where::offsets) return refuse(fmt::format("it has a negative offset ({})", number));
    return value(fmt::format("the number {}", number));
  }

  bool number_unsigned(std::uint64_t number) override {
    if (skipping()) return true;
    if (where_ == Where::shape) {
      if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return refuse(fmt::format("its dimension {} is out of range", number));
      claim().shape.push_back(static_cast<std::int64_t>(number));
      return true;
    }
    if (where_ == Where::offsets) {
      if (offsets_ >= 2) return refuse("data_offsets has more than two numbers");
      (offsets_ == 0 ? claim().begin : claim().end.emplace()) = number;
      ++offsets_;
      return true;
    }
    return value(fmt::format("the number {}", number));
  }

  bool string(std::string& text) override {
    if (skipping()) return true;
    if (where_ == Where::metadata) {
      metadata[key_] = std::move(text);
      return true;
    }
    if (where_ == Where::tensor && key_ == "dtype") {
      claim().dtype_text = text;
      claim().dtype = parse_dtype(text);
      return true;
    }
    return value("a string");
  }

  bool start_object(std::size_t) override {
    if (!descend()) return false;
    if (skipping()) return true;
    if (where_ == Where::start) {
      where_ = Where::top;
      return true;
    }
    if (where_ == Where::top) {
      keys_.clear();
      if (key_ == "__metadata__") {
        where_ = Where::metadata;
      } else {
        where_ = Where::tensor;
        claims.emplace_back().name = key_;
      }
      return true;
    }
    return open_unknown("an object");
  }

  bool end_object() override {
    --depth_;
    if (closes_skipped()) return true;
    if (where_ == Where::tensor) {
      for (const char* needed : {"dtype", "shape", "data_offsets"})
        if (!keys_.contains(needed)) return refuse(fmt::format("it has no {}", needed));
    }
    where_ = where_ == Where::top ? Where::end : Where::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (!descend()) return false;
    if (skipping()) return true;
    if (where_ == Where::tensor && key_ == "shape") {
      where_ = Where::shape;
      return true;
    }
    if (where_ == Where::tensor && key_ == "data_offsets") {
      where_ = Where::offsets;
      offsets_ = 0;
      return true;
    }
    return open_unknown("an array");
  }

  bool end_array() override {
    --depth_;
    if (closes_skipped()) return true;
    if (where_ == Where::shape) std::reverse(claim().shape.begin(), claim().shape.end());
    if (where_ == Where::offsets && offsets_ != 2) return refuse(fmt::format("data_offsets has {} numbers, not two", offsets_));
    where_ = Where::tensor;
    return true;
  }

  bool key(std::string& text) override {
    if (skipping()) return true;
    if (where_ == Where::top) {
      if (!top_keys_.insert(text).second) {
        trouble = fmt::format("the header has '{}' twice", printable(text));
        return false;
      }
    } else if (!keys_.insert(text).second) {
      return refuse(fmt::format("its key '{}' is there twice", printable(text)));
    }
    key_ = std::move(text);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    trouble = fmt::format("the header is no valid JSON at its byte {}: {}", position, printable(error.what()));
    return false;
  }

 private:
  enum class Where { start, top, tensor, shape, offsets, metadata, end };

  TensorClaim& claim() { return claims.back(); }
  bool skipping() const { return skip_depth_ != 0; }

  bool refuse(const std::string& why) {
    const bool in_tensor = where_ == Where::tensor || where_ == Where::shape || where_ == Where::offsets;
    trouble = in_tensor ? fmt::format("tensor '{}': {}", printable(claim().name), why) : fmt::format("the header: {}", why);
    return false;
  }

  bool descend() {
    if (++depth_ <= kDeepest) return true;
    return refuse(fmt::format("values are nested deeper than {}", kDeepest));
  }

  bool known_key() const { return key_ == "dtype" || key_ == "shape" || key_ == "data_offsets"; }

  /// A value in a place where only something else, or nothing, makes sense.
  bool value(const std::string& what) {
    if (skipping()) return true;
    switch (where_) {
      case Where::start: return refuse(fmt::format("it is {}, not an object", what));
      case Where::top: return refuse(fmt::format("'{}' is {}, not an object", printable(key_), what));
      case Where::metadata: return refuse(fmt::format("__metadata__ '{}' is {}, not a string", printable(key_), what));
      case Where::shape: return refuse(fmt::format("its shape holds {}, not a whole number in 64 bits", what));
      case Where::offsets: return refuse(fmt::format("its data_offsets hold {}, not a whole number in 64 bits", what));
      case Where::tensor:
        // Other keys may come with later versions of the format.
        return known_key() ? refuse(fmt::format("its {} is {}", key_, what)) : true;
      case Where::end: break;
    }
    return refuse("there is more after its end");
  }

  bool open_unknown(const char* what) {
    if (where_ == Where::tensor && !known_key()) {
      skip_depth_ = depth_;
      return true;
    }
    return value(what);
  }

  /// `depth_` is already that of the parent.
  bool closes_skipped() {
    if (!skipping()) return false;
    if (depth_ < skip_depth_) skip_depth_ = 0;
    return true;
  }

  Where where_ = Where::start;
  std::size_t depth_ = 0, skip_depth_ = 0, offsets_ = 0;
  std::string key_;
  std::unordered_set<std::string> top_keys_, keys_;
};

Result<std::shared_ptr<const TensorFile>> parse(const std::shared_ptr<const File>& file) {
  const std::string& path = file->path();
  const Bytes size = file->size();
  std::array<std::byte, 8> prefix{};
  if (size < prefix.size())
    return fail(Code::corrupt,
                fmt::format("{}: {} bytes are too few for a safetensors file: even the header's length takes 8", path, size),
                prefix.size(), size);
  SLUICE_TRY(file->read_at(0, prefix));
  Bytes length = 0;
  for (std::size_t i = prefix.size(); i-- > 0;) length = (length << 8) | std::to_integer<Bytes>(prefix[i]);
  if (length == 0) return fail(Code::corrupt, fmt::format("{}: the safetensors header is empty", path));
  if (length > size - prefix.size())
    return fail(
        Code::corrupt,
        fmt::format("{}: the safetensors header of {} bytes reaches past the end of the file ({} bytes)", path, length, size),
        length, size);
  if (length > kLargestHeader)
    return fail(Code::corrupt,
                fmt::format("{}: the safetensors header of {} bytes is larger than {}", path, length, kLargestHeader), length,
                kLargestHeader);
  std::string header(length, '\0');
  SLUICE_TRY(file->read_at(prefix.size(), std::as_writable_bytes(std::span(header))));

  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header, &reader)) return fail(Code::corrupt, fmt::format("{}: {}", path, reader.trouble));
  auto result = std::make_shared<TensorFile>();
  result->file = file;
  result->format = "safetensors";
  result->metadata = std::move(reader.metadata);
  SLUICE_TRY(admit_tensors(*result, std::move(reader.claims), prefix.size() + length, 1));
  return result;
}

}  // namespace

Result<std::shared_ptr<const TensorFile>> open_safetensors(const std::shared_ptr<const File>& file) {
  const std::string path = file->path();
  try {
    return parse(file);
  } catch (const std::exception& error) {  // the JSON library, or memory for a header of up to 100 MB
    return fail(Code::corrupt, fmt::format("{}: the safetensors header cannot be read: {}", path, printable(error.what())));
  }
}

}  // namespace sluice
