#include "io/file_hash.h"

#include <doctest/doctest.h>

#include <string_view>

#include "io/faulty_files.h"
#include "io/memory_file.h"
#include "io/sha256.h"

using namespace sluice;

namespace {

std::string sha256(std::string_view text) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.hex();
}

}  // namespace

TEST_CASE("Sha256: NIST's examples") {
  CHECK(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(
      sha256(
          "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu") ==
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK(sha256(std::string(1'000'000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("Sha256: pieces of any size give the hash of the whole") {
  std::string text;
  for (int i = 0; i < 1000; ++i) text.push_back(static_cast<char>(i * 7));
  for (const std::size_t piece : {1u, 3u, 55u, 63u, 64u, 65u, 999u}) {
    Sha256 hash;
    for (std::size_t at = 0; at < text.size(); at += piece)
      hash.update(std::as_bytes(std::span(text)).subspan(at, std::min(piece, text.size() - at)));
    CHECK(hash.hex() == sha256(text));
  }
}

TEST_CASE("model_hash: the first ten digits over the whole file, in bounded pieces; read errors and cancelling come through") {
  MemoryFiles memory;
  const std::string text(3 * MiB + 17, 'x');
  const auto bytes = std::as_bytes(std::span(text));
  memory.add("m", {bytes.begin(), bytes.end()});
  memory.add("empty", {});
  const auto source = std::make_shared<MemoryFiles>(memory);
  CHECK(model_hash(*source->open("m").value()).value() == sha256(text).substr(0, 10));
  CHECK(model_hash(*source->open("empty").value()).value() == "e3b0c44298");
  const FaultyFiles faulty(source, {.fail_read = 4});
  CHECK(model_hash(*faulty.open("m").value()).error().code == Code::io);
  CHECK(faulty.reads() == 4);
  CancelToken cancel;
  cancel.cancel();
  CHECK(model_hash(*source->open("m").value(), cancel).error().code == Code::cancelled);
}

TEST_CASE("quick_hash: sees the size and the first MiB, reads no more") {
  const auto hash = [](std::vector<std::byte> bytes) {
    const auto file = memory_file("m", std::move(bytes));
    const auto result = quick_hash(*file).value();
    CHECK(file->bytes_read() <= MiB);
    return result;
  };
  std::vector<std::byte> bytes(2 * MiB);
  const auto base = hash(bytes);
  CHECK(base.size() == 64);
  bytes[MiB - 1] = std::byte{1};
  CHECK(hash(bytes) != base);
  bytes[MiB - 1] = std::byte{0};
  CHECK(hash(bytes) == base);
  bytes.pop_back();
  CHECK(hash(bytes) != base);
}
