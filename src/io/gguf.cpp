#include "io/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <limits>

#include "base/utf8.h"
#include "io/ranges.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "the walker copies little-endian numbers as they are");

constexpr Bytes kWindow = 64 * KiB;
constexpr Bytes kLongestKey = 65535;      // the specification's limit
constexpr Bytes kLongestKept = 16 * MiB;  // a longer string value is no setting; it is walked over
constexpr std::uint32_t kMostDimensions = 8;
constexpr int kDeepestArray = 4;
constexpr std::uint64_t kLongestListKept = 16;

/// GGUF's value types. Source: the GGUF specification (ggml, docs/gguf.md).
enum class Kind : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64, count };

/// Bytes of one value; 0 for strings and arrays.
Bytes kind_size(Kind kind) {
  switch (kind) {
    case Kind::u8:
    case Kind::i8:
    case Kind::boolean: return 1;
    case Kind::u16:
    case Kind::i16: return 2;
    case Kind::u32:
    case Kind::i32:
    case Kind::f32: return 4;
    case Kind::u64:
    case Kind::i64:
    case Kind::f64: return 8;
    default: return 0;
  }
}

/// Walks forward through a file. Never asks for a byte past its end, never allocates more than the file could hold.
class Walker {
 public:
  explicit Walker(const File& file) : file_(file) {}

  Bytes position() const { return position_; }
  Bytes remaining() const { return file_.size() - position_; }

  template <typename T>
  Status read(T& out) {
    return copy(std::as_writable_bytes(std::span(&out, 1)));
  }

  Status skip(Bytes bytes) {
    if (bytes > remaining()) return ended(bytes);
    position_ += bytes;
    return {};
  }

  /// Fails when more elements of at least `least` bytes are announced than the file could hold.
  Status expect(Bytes count, Bytes least) {
    Bytes needed = 0;
    if (!checked_mul(count, least, needed) || needed > remaining()) return ended(needed);
    return {};
  }

  Status copy(std::span<std::byte> out) {
    if (out.size() > remaining()) return ended(out.size());
    if (out.size() > kWindow) {
      SLUICE_TRY(file_.read_at(position_, out));
    } else {
      if (position_ < window_begin_ || position_ + out.size() > window_begin_ + window_.size()) {
        window_.resize(std::min(kWindow, remaining()));
        window_begin_ = position_;
        if (auto status = file_.read_at(position_, window_); !status) {
          window_.clear();
          return status;
        }
      }
      std::memcpy(out.data(), window_.data() + (position_ - window_begin_), out.size());
    }
    position_ += out.size();
    return {};
  }

  Status read_string(std::string& out, Bytes longest) {
    std::uint64_t length = 0;
    SLUICE_TRY(read(length));
    SLUICE_TRY(expect(length, 1));
    if (length > longest)
      return fail(Code::corrupt, fmt::format("{}: a GGUF string of {} bytes at offset {}, at most {} are allowed here",
                                             file_.path(), length, position_, longest));
    out.resize(length);
    return copy(std::as_writable_bytes(std::span(out)));
  }

 private:
  tl::unexpected<Error> ended(Bytes needed) const {
    return fail(Code::corrupt,
                fmt::format("{}: the GGUF header needs {} more bytes at offset {}, the file has {}", file_.path(), needed,
                            position_, remaining()),
                needed, remaining());
  }

  const File& file_;
  Bytes position_ = 0, window_begin_ = 0;
  std::vector<std::byte> window_;
};

class Reader {
 public:
  explicit Reader(std::shared_ptr<const File> file)
      : walker_(*file), path_(file->path()), into_(std::make_shared<TensorFile>()) {
    into_->file = std::move(file);
    into_->format = "gguf";
  }

  Result<std::shared_ptr<const TensorFile>> run() {
    std::uint32_t magic = 0, version = 0;
    std::uint64_t tensors = 0, keys = 0;
    SLUICE_TRY(walker_.read(magic));
    if (magic != 0x46554747) return fail(Code::corrupt, fmt::format("{}: this is no GGUF file", path_));
    SLUICE_TRY(walker_.read(version));
    if (version != 2 && version != 3)
      return fail(Code::unsupported, fmt::format("{}: GGUF version {}{} cannot be read, only 2 and 3, little endian", path_,
                                                 version, (version & 0xFFFF) == 0 ? " (big endian?)" : ""));
    SLUICE_TRY(walker_.read(tensors));
    SLUICE_TRY(walker_.read(keys));
    // Least bytes of a key and its value: length, one byte of name, type, one byte of value. Of a tensor: length, rank, type,
    // offset.
    SLUICE_TRY(walker_.expect(keys, 8 + 1 + 4 + 1));
    SLUICE_TRY(walker_.expect(tensors, 8 + 4 + 4 + 8));
    for (std::uint64_t i = 0; i < keys; ++i) SLUICE_TRY(read_key());
    std::vector<TensorClaim> claims;
    for (std::uint64_t i = 0; i < tensors; ++i) SLUICE_TRY(read_tensor_claim(claims.emplace_back()));
    // A header at the very end of the file may lack its padding when there are no tensors.
    SLUICE_TRY(admit_tensors(*into_, std::move(claims), align_up(walker_.position(), alignment_), alignment_));
    return std::move(into_);
  }

 private:
  tl::unexpected<Error> corrupt(const std::string& why) const { return fail(Code::corrupt, fmt::format("{}: {}", path_, why)); }

  Result<Kind> read_kind(const std::string& key) {
    std::uint32_t id = 0;
    SLUICE_TRY(walker_.read(id));
    if (id >= static_cast<std::uint32_t>(Kind::count))
      return corrupt(fmt::format("GGUF key '{}' has the unknown value type {}", printable(key), id));
    return static_cast<Kind>(id);
  }

  template <typename T>
  Result<std::string> number_text() {
    T value{};
    SLUICE_TRY(walker_.read(value));
    return fmt::format("{}", value);
  }

  /// One number or truth value as text.
  Result<std::string> scalar_text(Kind kind, const std::string& key) {
    switch (kind) {
      case Kind::u8: return number_text<std::uint8_t>();
      case Kind::i8: return number_text<std::int8_t>();
      case Kind::u16: return number_text<std::uint16_t>();
      case Kind::i16: return number_text<std::int16_t>();
      case Kind::u32: return number_text<std::uint32_t>();
      case Kind::i32: return number_text<std::int32_t>();
      case Kind::f32: return number_text<float>();
      case Kind::u64: return number_text<std::uint64_t>();
      case Kind::i64: return number_text<std::int64_t>();
      case Kind::f64: return number_text<double>();
      default: break;
    }
    std::uint8_t truth = 0;
    SLUICE_TRY(walker_.read(truth));
    if (truth > 1) return corrupt(fmt::format("GGUF key '{}' has a truth value of {}", printable(key), truth));
    return std::string(truth == 1 ? "true" : "false");
  }

  Status read_key() {
    std::string key;
    SLUICE_TRY(walker_.read_string(key, kLongestKey));
    if (key.empty() || !is_utf8(key)) return corrupt(fmt::format("the GGUF key '{}' is empty or no UTF-8", printable(key)));
    if (!keys_.emplace(key, 0).second) return corrupt(fmt::format("the GGUF key '{}' is there twice", printable(key)));
    SLUICE_ASSIGN(const Kind kind, read_kind(key));
    if (key == "general.alignment") return read_alignment(kind);
    if (kind == Kind::array) return read_array(key, 1);
    if (kind == Kind::string) return read_text(key);
    SLUICE_ASSIGN(into_->metadata[key], scalar_text(kind, key));
    return {};
  }

  Status read_alignment(Kind kind) {
    std::uint32_t value = 0;
    if (kind != Kind::u32) return corrupt("general.alignment is no 32-bit unsigned number");
    SLUICE_TRY(walker_.read(value));
    if (!std::has_single_bit(value)) return corrupt(fmt::format("general.alignment is {}, not a power of two", value));
    alignment_ = value;
    into_->metadata["general.alignment"] = fmt::format("{}", value);
    return {};
  }

  Status read_text(const std::string& key) {
    std::string text;
    SLUICE_TRY(walker_.read_string(text, kLongestKept));
    if (is_utf8(text)) {
      into_->metadata[key] = std::move(text);
    } else {
      into_->warnings.push_back(
          fmt::format("{}: the text of GGUF key '{}' is no UTF-8 and is left out", path_, printable(key)));
    }
    return {};
  }

  Status read_array(const std::string& key, int depth) {
    if (depth > kDeepestArray)
      return corrupt(fmt::format("GGUF key '{}' nests arrays deeper than {}", printable(key), kDeepestArray));
    SLUICE_ASSIGN(const Kind kind, read_kind(key));
    std::uint64_t count = 0;
    SLUICE_TRY(walker_.read(count));
    const Bytes unit = kind_size(kind);
    SLUICE_TRY(walker_.expect(count, unit > 0 ? unit : kind == Kind::string ? 8 : 12));
    if (kind == Kind::array) {
      for (std::uint64_t i = 0; i < count; ++i) SLUICE_TRY(read_array(key, depth + 1));
      return {};
    }
    if (kind == Kind::string) {
      for (std::uint64_t i = 0; i < count; ++i) {
        std::uint64_t length = 0;
        SLUICE_TRY(walker_.read(length));
        SLUICE_TRY(walker_.skip(length));
      }
      return {};
    }
    if (count > kLongestListKept || depth > 1) return walker_.skip(count * unit);
    std::string list;
    for (std::uint64_t i = 0; i < count; ++i) {
      SLUICE_ASSIGN(const std::string text, scalar_text(kind, key));
      list += (i == 0 ? "" : ", ") + text;
    }
    into_->metadata[key] = "[" + list + "]";
    return {};
  }

  Status read_tensor_claim(TensorClaim& claim) {
    SLUICE_TRY(walker_.read_string(claim.name, kLongestKey));
    const auto bad = [&](const std::string& why) {
      return corrupt(fmt::format("tensor '{}': {}", printable(claim.name), why));
    };
    if (!is_utf8(claim.name)) return bad("its name is no UTF-8");
    std::uint32_t rank = 0, type = 0;
    SLUICE_TRY(walker_.read(rank));
    if (rank > kMostDimensions) return bad(fmt::format("it has {} dimensions, at most {} can be read", rank, kMostDimensions));
    for (std::uint32_t i = 0; i < rank; ++i) {
      std::uint64_t n = 0;
      SLUICE_TRY(walker_.read(n));
      if (n > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        return bad(fmt::format("its dimension {} is out of range", n));
      claim.shape.push_back(static_cast<std::int64_t>(n));
    }
    SLUICE_TRY(walker_.read(type));
    SLUICE_TRY(walker_.read(claim.begin));
    // Ids that ggml has given up keep their place in the table with a size of 0.
    if (type >= static_cast<std::uint32_t>(GGML_TYPE_COUNT) || ggml_type_size(static_cast<ggml_type>(type)) == 0 ||
        ggml_blck_size(static_cast<ggml_type>(type)) <= 0)
      return fail(Code::unsupported,
                  fmt::format("{}: tensor '{}' has the type id {}, which this build's ggml does not know: it needs a newer "
                              "ggml, or the file another quantisation",
                              path_, printable(claim.name), type));
    claim.ggml = static_cast<ggml_type>(type);
    claim.dtype_text = ggml_type_name(claim.ggml);
    claim.dtype = dtype_of(claim.ggml);
    if (claim.begin % alignment_ != 0)
      return bad(fmt::format("its offset {} is no multiple of the alignment {}", claim.begin, alignment_));
    return {};
  }

  static DType dtype_of(ggml_type type) {
    for (const DType plain : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::i16, DType::i8})
      if (dtype_to_ggml(plain) == type) return plain;
    return DType::quantised;
  }

  Walker walker_;
  std::string path_;
  std::shared_ptr<TensorFile> into_;
  std::unordered_map<std::string, int> keys_;
  Bytes alignment_ = 32;
};

}  // namespace

Result<std::shared_ptr<const TensorFile>> open_gguf(std::shared_ptr<const File> file) {
  const std::string path = file->path();
  try {
    return Reader(std::move(file)).run();
  } catch (const std::exception& error) {  // memory for a header nearly as large as the file
    return fail(Code::corrupt, fmt::format("{}: the GGUF header cannot be read: {}", path, error.what()));
  }
}

}  // namespace sluice
