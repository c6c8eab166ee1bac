#include "io/tensor_file.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/utf8.h"
#include "io/convert.h"
#include "io/faulty_files.h"
#include "io/memory_file.h"
#include "io/ranges.h"
#include "io/test_folder.h"

using namespace sluice;

namespace {

const std::string kSafetensors = SLUICE_SOURCE_DIR "/tests/golden/safetensors/files/";
const std::string kGguf = SLUICE_SOURCE_DIR "/tests/golden/gguf/types/";

std::vector<float> floats(const TensorFile& file, const TensorInfo& info) {
  std::vector<std::byte> raw(info.size);
  REQUIRE(read_tensor(file, info, raw));
  std::vector<float> out(static_cast<std::size_t>(info.elements()));
  const auto status = convert(info, raw, info.elements(), GGML_TYPE_F32, std::as_writable_bytes(std::span(out)));
  REQUIRE_MESSAGE(status, status.error().message);
  return out;
}

nlohmann::json case_of(const std::string& folder) {
  const auto bytes = test::slurp(folder + "case.json");
  return nlohmann::json::parse(reinterpret_cast<const char*>(bytes.data()),
                               reinterpret_cast<const char*>(bytes.data()) + bytes.size());
}

Result<std::shared_ptr<const TensorFile>> open_bytes(std::vector<std::byte> bytes) {
  return open_tensor_file(memory_file("memory", std::move(bytes)));
}

std::vector<std::byte> safetensors_bytes(const std::string& header, std::size_t data) {
  std::vector<std::byte> out;
  for (std::size_t i = 0; i < 8; ++i) out.push_back(static_cast<std::byte>(header.size() >> (8 * i)));
  for (const char c : header) out.push_back(static_cast<std::byte>(c));
  out.resize(out.size() + data);
  return out;
}

/// Opens whatever it is and touches all that is offered, as a loader would.
void use_everything(std::vector<std::byte> bytes) {
  const auto opened = open_bytes(std::move(bytes));
  if (!opened) {
    CHECK_FALSE(opened.error().message.empty());
    return;
  }
  const TensorFile& file = **opened;
  for (const TensorInfo& info : file.tensors) {
    REQUIRE(info.offset + info.size <= file.file->size());
    std::vector<std::byte> raw(info.size);
    REQUIRE(read_tensor(file, info, raw));
    if (!convertible(info, GGML_TYPE_F32)) continue;
    std::vector<std::byte> out(static_cast<std::size_t>(info.elements()) * 4);
    REQUIRE(convert(info, raw, info.elements(), GGML_TYPE_F32, out));
  }
}

/// A GGUF writer just large enough to build broken files.
struct GgufBuilder {
  std::vector<std::byte> bytes;
  template <typename T>
  GgufBuilder& put(T value) {
    const auto raw = std::as_bytes(std::span(&value, 1));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
    return *this;
  }
  GgufBuilder& text(std::string_view s) {
    put<std::uint64_t>(s.size());
    for (const char c : s) put(c);
    return *this;
  }
  GgufBuilder& head(std::uint64_t tensors, std::uint64_t keys, std::uint32_t version = 3) {
    return put<std::uint32_t>(0x46554747).put(version).put(tensors).put(keys);
  }
  GgufBuilder& tensor(std::string_view name, std::vector<std::uint64_t> dims, std::uint32_t type, std::uint64_t offset) {
    text(name).put(static_cast<std::uint32_t>(dims.size()));
    for (const auto n : dims) put(n);
    return put(type).put(offset);
  }
  std::vector<std::byte> with_data(std::size_t size, std::size_t alignment = 32) {
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment + size);
    return bytes;
  }
};

void check_refused(std::vector<std::byte> bytes, Code code, const std::string& part) {
  const auto opened = open_bytes(std::move(bytes));
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == code);
  CHECK_MESSAGE(opened.error().message.find(part) != std::string::npos, opened.error().message);
}

}  // namespace

TEST_CASE("safetensors: every valid file of the oracle is read right") {
  const auto expected = open_tensor_file(kSafetensors + "expected.safetensors", *system_files()).value();
  const auto json = case_of(kSafetensors);
  std::size_t checked = 0;
  for (const auto& [name, tensors] : json["valid"].items()) {
    CAPTURE(name);
    const auto file = open_tensor_file(kSafetensors + name, *system_files()).value();
    CHECK(file->format == "safetensors");
    CHECK(file->tensors.size() == tensors.size());
    CHECK(file->unknown.empty());
    CHECK(file->warnings.empty());
    const std::string stem = name.substr(3, name.find('.') - 3);  // ok_STEM.safetensors
    for (const std::string tensor : tensors) {
      CAPTURE(tensor);
      const auto* got = file->find(tensor);
      const auto* want = expected->find(stem + "/" + tensor);
      REQUIRE(got != nullptr);
      REQUIRE(want != nullptr);
      CHECK(got->shape == want->shape);
      const auto a = floats(*file, *got), b = floats(*expected, *want);
      REQUIRE(a.size() == b.size());
      for (std::size_t i = 0; i < a.size(); ++i) CHECK((a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))));
      ++checked;
    }
  }
  CHECK(checked == expected->tensors.size());
  const auto metadata = open_tensor_file(kSafetensors + "ok_metadata.safetensors", *system_files()).value()->metadata;
  CHECK(metadata.at("modelspec.title") == "tëst ✓");
  CHECK(metadata.at("quote") == "a\"b\\c\n");
}

TEST_CASE("safetensors: shapes are in ggml order") {
  const auto file = open_tensor_file(kSafetensors + "ok_scalar_and_5d.safetensors", *system_files()).value();
  CHECK(file->find("five")->shape == std::vector<std::int64_t>{2, 3, 1, 2, 1});
  CHECK(file->find("scalar")->shape.empty());
  CHECK(file->find("scalar")->elements() == 1);
  CHECK(file->find("nothing") == nullptr);
}

TEST_CASE("safetensors: every bad file of the oracle is refused by name, or accepted with a warning where that is allowed") {
  const auto json = case_of(kSafetensors);
  const std::set<std::string> lenient{"bad_trailing_bytes.safetensors", "bad_gap.safetensors"};
  CHECK(json["refuse"].size() == 28);
  for (const auto& [name, why] : json["refuse"].items()) {
    CAPTURE(name);
    const auto opened = open_tensor_file(kSafetensors + name, *system_files());
    if (opened) {
      const bool unknown = !(*opened)->unknown.empty();
      CHECK((unknown ? name == "bad_unknown_dtype.safetensors" : lenient.contains(name)));
      CHECK((*opened)->warnings.size() == 1);
      continue;
    }
    CHECK(opened.error().code == Code::corrupt);
    CHECK(opened.error().message.find(name) != std::string::npos);
  }
}

TEST_CASE("safetensors: messages name the tensor and both sizes") {
  const auto error = open_tensor_file(kSafetensors + "bad_size_too_small.safetensors", *system_files()).error();
  CHECK(error.message.find("'a'") != std::string::npos);
  CHECK(error.needed == 20);
  CHECK(error.available == 16);
  // The file of FAULTS R01: F64 [4] in 16 bytes.
  check_refused(safetensors_bytes(R"({"w":{"dtype":"F64","shape":[4],"data_offsets":[0,16]}})", 16), Code::corrupt, "32 bytes");
}

TEST_CASE("safetensors: an unknown dtype is named and skipped, and its offsets are checked all the same") {
  const auto file =
      open_bytes(
          safetensors_bytes(
              R"({"a":{"dtype":"F6_X","shape":[9],"data_offsets":[0,7]},"b":{"dtype":"U8","shape":[1],"data_offsets":[7,8]}})",
              8))
          .value();
  CHECK(file->unknown == std::vector<std::string>{"a"});
  CHECK(file->find("a") == nullptr);
  CHECK(file->find("b")->offset == file->file->size() - 1);
  REQUIRE(file->warnings.size() == 1);
  CHECK(file->warnings[0].find("F6_X") != std::string::npos);
  const auto header = [](const char* offsets) {
    return safetensors_bytes(fmt::format(R"({{"a":{{"dtype":"F6_X","shape":[4],"data_offsets":{}}}}})", offsets), 16);
  };
  for (const char* offsets :
       {"[9223372036854775808,9223372036854775812]", "[18446744073709551610,18446744073709551615]", "[8,4]", "[0,17]"})
    check_refused(header(offsets), Code::corrupt, "'a'");
  check_refused(
      safetensors_bytes(
          R"({"a":{"dtype":"F6_X","shape":[],"data_offsets":[0,6]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8),
      Code::corrupt, "overlap");
}

TEST_CASE("safetensors: refusals of the header") {
  const auto tensor = [](const char* body) { return safetensors_bytes(fmt::format(R"({{"a":{{{}}}}})", body), 16); };
  check_refused(tensor(R"("dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16])"), Code::corrupt, "twice");
  check_refused(tensor(R"("dtype":3,"shape":[4],"data_offsets":[0,16])"), Code::corrupt, "dtype");
  check_refused(tensor(R"("dtype":"F32","shape":[[4]],"data_offsets":[0,16])"), Code::corrupt, "shape");
  check_refused(tensor(R"("dtype":"F32","shape":4,"data_offsets":[0,16])"), Code::corrupt, "shape");
  check_refused(tensor(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,16])"), Code::corrupt, "out of range");
  check_refused(tensor(R"("dtype":"F32","shape":[0,4611686018427387904,4],"data_offsets":[0,0])"), Code::corrupt, "2^63-1");
  check_refused(tensor(R"("dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0])"), Code::corrupt, "2^64-1");
  check_refused(tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0])"), Code::corrupt, "data_offsets");
  check_refused(safetensors_bytes(R"({"__metadata__":{"a":1}})", 0), Code::corrupt, "__metadata__");
  check_refused(safetensors_bytes(R"({"__metadata__":{"a":"1","a":"2"}})", 0), Code::corrupt, "twice");
  check_refused(safetensors_bytes(R"({"a":null})", 0), Code::corrupt, "null");
  check_refused(safetensors_bytes(R"({} {})", 0), Code::corrupt, "JSON");
  // Keys of later versions are let through, whatever they hold.
  const auto later =
      open_bytes(tensor(R"("x":{"y":[1,[-2,{"z":"s"}],true]},"dtype":"F32","w":null,"shape":[4],"data_offsets":[0,16])"));
  REQUIRE(later);
  CHECK((*later)->find("a")->size == 16);
}

TEST_CASE("open_tensor_file: other things people have under this name are told apart") {
  const auto bytes_of = [](std::string_view text) {
    const auto* p = reinterpret_cast<const std::byte*>(text.data());
    return std::vector<std::byte>(p, p + text.size());
  };
  check_refused(bytes_of("PK\x03\x04 and the rest of a zip"), Code::unsupported, "torch");
  check_refused(bytes_of("\x80\x02}q and more pickle"), Code::unsupported, "torch");
  check_refused(bytes_of("version https://git-lfs.github.com/spec/v1\n"), Code::unsupported, "LFS");
  check_refused(bytes_of("<!doctype html><html></html>"), Code::unsupported, "web page");
  check_refused(bytes_of("just some words"), Code::corrupt, "header");
  CHECK(open_tensor_file("/nonexistent/file", *system_files()).error().code == Code::not_found);
  // 640 bytes of header begin like a pickle.
  std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  header.resize(640, ' ');
  CHECK(open_bytes(safetensors_bytes(header, 1)));
}

TEST_CASE("gguf: every type of the oracle dequantises as expected") {
  const auto file = open_tensor_file(kGguf + "types.gguf", *system_files()).value();
  const auto expected = open_tensor_file(kGguf + "expected.safetensors", *system_files()).value();
  CHECK(file->format == "gguf");
  CHECK(file->metadata.contains("general.architecture"));
  CHECK(file->tensors.size() == expected->tensors.size());
  for (const auto& want : expected->tensors) {
    CAPTURE(want.name);
    const auto* got = file->find(want.name);
    REQUIRE(got != nullptr);
    CHECK(got->shape == want.shape);
    const auto a = floats(*file, *got), b = floats(*expected, want);
    REQUIRE(a.size() == b.size());
    float largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
    CHECK(largest <= 1e-6f);
    if (got->dtype != DType::quantised) CHECK(largest == 0);
  }
}

TEST_CASE("gguf: keys become text; small number arrays too; vocabularies are walked over") {
  GgufBuilder b;
  b.head(0, 7);
  b.text("u").put<std::uint32_t>(4).put<std::uint32_t>(7);
  b.text("i").put<std::uint32_t>(11).put<std::int64_t>(-5);
  b.text("f").put<std::uint32_t>(6).put<float>(0.5f);
  b.text("t").put<std::uint32_t>(7).put<std::uint8_t>(1);
  b.text("s").put<std::uint32_t>(8).text("wörd");
  b.text("shape").put<std::uint32_t>(9).put<std::uint32_t>(5).put<std::uint64_t>(2).put<std::int32_t>(3).put<std::int32_t>(-4);
  b.text("words").put<std::uint32_t>(9).put<std::uint32_t>(8).put<std::uint64_t>(2).text("a").text("bc");
  const auto file = open_bytes(b.bytes).value();
  const std::map<std::string, std::string> want{{"u", "7"},    {"i", "-5"},   {"f", "0.5"},
                                                {"t", "true"}, {"s", "wörd"}, {"shape", "[3, -4]"}};
  CHECK(file->metadata == want);
}

TEST_CASE("gguf: type ids unknown, removed or reserved are refused with tensor and id, and nothing aborts") {
  for (const std::uint32_t id :
       {250u, 4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u, static_cast<unsigned>(GGML_TYPE_COUNT), 0xFFFFFFFFu}) {
    CAPTURE(id);
    check_refused(GgufBuilder().head(1, 0).tensor("block.w", {32}, id, 0).with_data(256), Code::unsupported,
                  fmt::format("type id {}", id));
  }
  for (std::uint32_t id = 0; id < 260; ++id) {
    CAPTURE(id);
    const auto opened = open_bytes(GgufBuilder().head(1, 0).tensor("block.w", {256}, id, 0).with_data(4096));
    if (!opened) CHECK(opened.error().message.find("block.w") != std::string::npos);
  }
}

TEST_CASE("gguf: refusals") {
  using B = GgufBuilder;
  const std::uint64_t top = ~std::uint64_t{0};
  check_refused(B().head(1, 0).tensor("w", {33}, GGML_TYPE_Q8_0, 0).with_data(256), Code::corrupt, "33");
  check_refused(B().head(1, 0).tensor("w", {64}, GGML_TYPE_F32, 0).with_data(255), Code::corrupt, "past the end");
  check_refused(B().head(1, 0).tensor("w", {8}, GGML_TYPE_F32, 4).with_data(256), Code::corrupt, "alignment");
  check_refused(B().head(1, 0).tensor("w", {8}, GGML_TYPE_F32, top - 31).with_data(256), Code::corrupt, "'w'");
  check_refused(B().head(1, 0).tensor("w", {top}, GGML_TYPE_F32, 0).with_data(256), Code::corrupt, "'w'");
  check_refused(B().head(1, 0).tensor("w", {1ull << 40, 1ull << 40}, GGML_TYPE_F32, 0).with_data(256), Code::corrupt, "2^63-1");
  check_refused(B().head(2, 0).tensor("w", {8}, 0, 0).tensor("w", {8}, 0, 32).with_data(256), Code::corrupt, "twice");
  check_refused(B().head(2, 0).tensor("v", {16}, 0, 0).tensor("w", {8}, 0, 32).with_data(256), Code::corrupt, "overlap");
  check_refused(B().head(1, 0).tensor("w", {1, 1, 1, 1, 1, 1, 1, 1, 1}, 0, 0).with_data(256), Code::corrupt, "dimensions");
  check_refused(B().head(1, 0).tensor("\xff", {8}, 0, 0).with_data(256), Code::corrupt, "UTF-8");
  check_refused(B().head(top, 0).with_data(256), Code::corrupt, "more bytes");
  check_refused(B().head(0, top).with_data(256), Code::corrupt, "more bytes");
  check_refused(B().head(1ull << 61, 1ull << 61).with_data(256), Code::corrupt, "more bytes");
  check_refused(B().head(0, 0, 1).bytes, Code::unsupported, "version 1");
  check_refused(B().head(0, 0, 0x03000000).bytes, Code::unsupported, "big endian");
  check_refused(B().head(0, 1).put<std::uint64_t>(top).with_data(64), Code::corrupt, "more bytes");
  check_refused(B().head(0, 1).text("k").put<std::uint32_t>(13).with_data(64), Code::corrupt, "value type 13");
  check_refused(B().head(0, 1).text("k").put<std::uint32_t>(8).put<std::uint64_t>(1ull << 62).with_data(64), Code::corrupt,
                "more bytes");
  check_refused(
      B().head(0, 1).text("k").put<std::uint32_t>(9).put<std::uint32_t>(10).put<std::uint64_t>(1ull << 61).with_data(64),
      Code::corrupt, "more bytes");
  check_refused(B().head(0, 1).text("k").put<std::uint32_t>(7).put<std::uint8_t>(2).with_data(64), Code::corrupt, "truth");
  check_refused(B().head(0, 1).text("general.alignment").put<std::uint32_t>(4).put<std::uint32_t>(24).with_data(64),
                Code::corrupt, "24");
  check_refused(B().head(0, 1).text("general.alignment").put<std::uint32_t>(4).put<std::uint32_t>(0).with_data(64),
                Code::corrupt, "0");
  B nested;
  nested.head(0, 1).text("k").put<std::uint32_t>(9);
  for (int i = 0; i < 1000; ++i) nested.put<std::uint32_t>(9).put<std::uint64_t>(1);
  check_refused(nested.with_data(64), Code::corrupt, "nests");
}

TEST_CASE("gguf: general.alignment moves the data") {
  GgufBuilder b;
  b.head(2, 1).text("general.alignment").put<std::uint32_t>(4).put<std::uint32_t>(1024);
  b.tensor("a", {4}, GGML_TYPE_F32, 0).tensor("b", {2, 3}, GGML_TYPE_F16, 1024);
  const auto file = open_bytes(b.with_data(1024 + 12, 1024)).value();
  CHECK(file->find("a")->offset == 1024);
  CHECK(file->find("b")->offset == 2048);
  CHECK(file->warnings.empty());
}

TEST_CASE("truncation at every byte is an error and never a crash") {
  for (const std::string& path : {kSafetensors + "ok_dtypes.safetensors", kSafetensors + "ok_names.safetensors"}) {
    const auto whole = test::slurp(path);
    REQUIRE(open_bytes(whole));
    for (std::size_t size = 0; size < whole.size(); ++size) {
      CAPTURE(size);
      CHECK_FALSE(open_bytes({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}));
    }
  }
  const auto whole = GgufBuilder()
                         .head(2, 1)
                         .text("k")
                         .put<std::uint32_t>(8)
                         .text("value")
                         .tensor("a", {4}, 0, 0)
                         .tensor("b", {32}, 8, 32)
                         .with_data(66);
  REQUIRE(open_bytes(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK_FALSE(open_bytes({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}));
  }
}

TEST_CASE("10,000 mutated files per format: an error or a usable file, nothing else") {
  const std::vector<std::vector<std::byte>> seeds{test::slurp(kSafetensors + "ok_dtypes.safetensors"),
                                                  test::slurp(kSafetensors + "ok_metadata.safetensors"),
                                                  GgufBuilder()
                                                      .head(3, 2)
                                                      .text("k")
                                                      .put<std::uint32_t>(8)
                                                      .text("value")
                                                      .text("n")
                                                      .put<std::uint32_t>(9)
                                                      .put<std::uint32_t>(4)
                                                      .put<std::uint64_t>(2)
                                                      .put<std::uint32_t>(1)
                                                      .put<std::uint32_t>(2)
                                                      .tensor("a", {4}, 0, 0)
                                                      .tensor("b", {32}, 8, 32)
                                                      .tensor("c", {256, 2}, GGML_TYPE_IQ2_XXS, 96)
                                                      .with_data(96 + 2 * 66)};
  std::mt19937 rng(7);
  for (const auto& seed : seeds) {
    REQUIRE(open_bytes(seed));
    for (int i = 0; i < 10'000; ++i) {
      auto bytes = seed;
      // Mostly the header, which is where the structure is.
      for (unsigned flips = 1 + rng() % 4; flips > 0; --flips)
        bytes[rng() % bytes.size()] = static_cast<std::byte>(rng() % 3 == 0 ? 0xFF : rng());
      if (rng() % 8 == 0) bytes.resize(rng() % bytes.size());
      use_everything(std::move(bytes));
    }
  }
}

TEST_CASE("the n-th read fails, for every n: io with the path, and the next try succeeds") {
  for (const std::string& path : {kSafetensors + "ok_dtypes.safetensors", kGguf + "types.gguf"}) {
    CAPTURE(path);
    std::uint64_t n = 1;
    for (; n < 1000; ++n) {
      const FaultyFiles files(system_files(), {.fail_read = n});
      const auto load = [&]() -> Status {
        SLUICE_ASSIGN(const auto file, open_tensor_file(path, files));
        for (const auto& info : file->tensors) {
          std::vector<std::byte> raw(info.size);
          SLUICE_TRY(read_tensor(*file, info, raw));
        }
        return {};
      };
      const auto status = load();
      if (files.reads() < n) break;
      REQUIRE_FALSE(status);
      CHECK(status.error().code == Code::io);
      CHECK(status.error().message.find(path) != std::string::npos);
      CHECK(load());
    }
    CHECK(n > 10);
    CHECK(n < 1000);
  }
}

TEST_CASE("opening reads the header only") {
  const auto file = open_tensor_file(kSafetensors + "expected.safetensors", *system_files()).value();
  CHECK(file->file->bytes_read() < 16 + 8 + 1848 + 1);
  std::vector<std::byte> wrong(3);
  CHECK(read_tensor(*file, file->tensors[0], wrong).error().code == Code::invalid_argument);
}

TEST_CASE("printable: control characters and broken UTF-8 cannot reach a terminal") {
  CHECK(printable("a.b é") == "a.b é");
  CHECK(printable("\x1b[31m\xff") == "\\x1b[31m\\xff");
  CHECK(printable(std::string(1000, 'x')).size() < 210);
  for (const char* bad : {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"}) CHECK_FALSE(is_utf8(bad));
  for (const char* good : {"", "é", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf", "€"}) CHECK(is_utf8(good));
}
