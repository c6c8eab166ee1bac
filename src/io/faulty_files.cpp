#include "io/faulty_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "io/read_fully.h"

namespace sluice {

struct FaultyFiles::State {
  explicit State(Faults f) : faults(f) {}
  const Faults faults;
  std::atomic<std::uint64_t> reads{0}, opens{0}, maps{0};
};

namespace {

/// A number that depends on `seed` and `n` alone, so that a schedule repeats whatever the threads do. Source: SplitMix64's
/// finaliser.
std::uint64_t scramble(std::uint64_t seed, std::uint64_t n) {
  std::uint64_t x = seed + n * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

std::string eio_text() { return std::generic_category().message(EIO); }

class FaultyFile final : public File {
 public:
  FaultyFile(std::shared_ptr<const File> inner, std::shared_ptr<FaultyFiles::State> state)
      : inner_(std::move(inner)), state_(std::move(state)) {}
  const std::string& path() const override { return inner_->path(); }
  Bytes size() const override { return inner_->size(); }
  Status unchanged() const override { return inner_->unchanged(); }
  Bytes bytes_read() const override { return inner_->bytes_read(); }

  Status read_at(Bytes offset, std::span<std::byte> out) const override { return read(offset, out, false); }
  Status read_at_uncached(Bytes offset, std::span<std::byte> out) const override { return read(offset, out, true); }

  Result<std::shared_ptr<const Mapping>> map() const override {
    const std::uint64_t n = state_->maps.fetch_add(1) + 1;
    if (n == state_->faults.fail_map)
      return fail(Code::io, fmt::format("{}: mapping {} bytes failed: {}", path(), size(), eio_text()));
    return inner_->map();
  }

 private:
  Status read(Bytes offset, std::span<std::byte> out, bool uncached) const {
    const Faults& faults = state_->faults;
    const std::uint64_t n = state_->reads.fetch_add(1) + 1;
    if (faults.delay_seed != 0 && faults.delay_us > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(scramble(faults.delay_seed, n) % faults.delay_us));
    const bool broken = faults.fail_read != 0 && (n == faults.fail_read || (faults.keep_failing && n > faults.fail_read));
    std::uint64_t attempts = 0;
    Status inner_status;
    auto status = read_fully(path(), offset, out, [&](std::span<std::byte> to, Bytes from) -> std::int64_t {
      if (broken) return -EIO;
      std::size_t piece = to.size();
      if (faults.hiccups) {
        if (attempts++ % 2 == 0) return -EINTR;
        piece =
            std::max<std::size_t>(1, std::min<std::size_t>(piece, 1 + scramble(n, attempts) % std::max<std::size_t>(piece, 1)));
      }
      to = to.first(piece);
      inner_status = uncached ? inner_->read_at_uncached(from, to) : inner_->read_at(from, to);
      return inner_status ? static_cast<std::int64_t>(piece) : -EIO;
    });
    // The inner file's own words say more than a made-up EIO.
    if (!status && !inner_status) return inner_status;
    return status;
  }

  std::shared_ptr<const File> inner_;
  std::shared_ptr<FaultyFiles::State> state_;
};

}  // namespace

FaultyFiles::FaultyFiles(std::shared_ptr<const FileSource> inner, Faults faults)
    : inner_(std::move(inner)), state_(std::make_shared<State>(faults)) {}

Result<std::shared_ptr<const File>> FaultyFiles::open(const std::string& path) const {
  const std::uint64_t n = state_->opens.fetch_add(1) + 1;
  if (n == state_->faults.fail_open) return fail(Code::io, fmt::format("{}: cannot open: {}", path, eio_text()));
  SLUICE_ASSIGN(auto file, inner_->open(path));
  return std::make_shared<FaultyFile>(std::move(file), state_);
}

std::uint64_t FaultyFiles::reads() const { return state_->reads.load(); }
std::uint64_t FaultyFiles::opens() const { return state_->opens.load(); }
std::uint64_t FaultyFiles::maps() const { return state_->maps.load(); }

}  // namespace sluice
