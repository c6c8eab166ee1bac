#include "device/report_rates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>

#include "base/named_thread.h"
#include "device/arena.h"
#include "device/rate_probe.h"

namespace sluice {
namespace {

constexpr double kSecondsEach = 0.03;
constexpr int kRunsEach = 50;
constexpr int kMostProducts = 512;

/// Operations one after another on a device's clock. Virtual time stands still between operations and may be ahead of the real
/// one, so an operation starts at the later of now and the end of what was before.
class Timer {
 public:
  Moment start() const {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::max<Moment>(last_, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  }
  /// Seconds that `operation` takes, from the moment it is given.
  template <typename Operation>
  Result<double> time(Operation operation) {
    const Moment from = start();
    SLUICE_ASSIGN(const Moment to, operation(from));
    last_ = std::max(last_, to);
    return static_cast<double>(std::max<Moment>(to - from, 0)) * 1e-9;
  }
  /// The shortest of as many as fit kSecondsEach, at least two (the first warms up) and at most kRunsEach.
  template <typename Operation>
  Result<double> best(Operation operation) {
    double best = std::numeric_limits<double>::max();
    const auto first = std::chrono::steady_clock::now();
    for (int run = 0; run < kRunsEach; ++run) {
      SLUICE_ASSIGN(const double seconds, time(operation));
      best = std::min(best, seconds);
      if (run > 0 && std::chrono::steady_clock::now() - first > std::chrono::duration<double>(kSecondsEach)) break;
    }
    return best;
  }

 private:
  Moment last_ = 0;
};

/// Products of a matrix of zeros with what came before, each into one of two places in turn.
struct Products {
  ggml_context_ptr context;
  ggml_cgraph* graph = nullptr;
};

/// What is measured with, on the device.
class Bench {
 public:
  static Result<std::unique_ptr<Bench>> open(Device& device, const CancelToken& cancel) {
    std::unique_ptr<Bench> bench{new Bench(device, cancel)};
    SLUICE_TRY(bench->make());
    return bench;
  }

  Bytes copied() const { return ggml_nbytes(target_); }
  double product_flops() const { return 2.0 * std::pow(static_cast<double>(n_), 3); }
  Result<Moment> set(std::span<const std::byte> bytes, Moment from) { return device_.set(target_, 0, bytes, from, cancel_); }
  Result<Moment> get(std::span<std::byte> bytes, Moment from) { return device_.get(target_, 0, bytes, from); }
  Result<Moment> compute(const Products& products, Moment from) { return device_.compute(products.graph, from, cancel_); }

  Result<Products> products(int count) {
    const auto nodes = static_cast<std::size_t>(count);
    Products made;
    made.context.reset(
        ggml_init({(nodes + 8) * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes + 8, false) + 1024, nullptr, true}));
    if (!made.context) return fail(Code::device_oom, "no host memory to measure rates with");
    made.graph = ggml_new_graph_custom(made.context.get(), nodes + 8, false);
    ggml_tensor* last = input_;
    for (int i = 0; i < count; ++i) {
      last = ggml_mul_mat(made.context.get(), weight_, last);
      SLUICE_TRY(arena_.bind(last, places_[static_cast<std::size_t>(i % 2)]));
    }
    if (!device_.supports(last)) return fail(Code::unsupported, device_.info().name + " has no product of f32 matrices");
    ggml_build_forward_expand(made.graph, last);
    return made;
  }

 private:
  Bench(Device& device, const CancelToken& cancel) : device_(device), cancel_(cancel), arena_(device) {}

  Status make() {
    // A small device is not filled: at most a quarter of what is free.
    const MemoryView memory = device_.memory();
    const Bytes room = memory.known ? std::min<Bytes>(memory.free / 4, 32 * MiB) : 32 * MiB;
    const Bytes buffer = Arena::chunk_size_for(device_.info());
    n_ = device_.info().kind == DeviceKind::gpu ? 1024 : 512;
    while (n_ > 16 && (4 * Bytes(n_) * Bytes(n_) * 4 > room / 2 || Bytes(n_) * Bytes(n_) * 4 > buffer)) n_ /= 2;
    const Bytes copy = std::max<Bytes>(std::min({16 * MiB, room / 2, buffer}) / 64 * 64, 64);
    context_.reset(ggml_init({8 * ggml_tensor_overhead(), nullptr, true}));
    if (!context_) return fail(Code::device_oom, "no host memory to measure rates with");
    weight_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, n_, n_);
    input_ = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, n_, n_);
    target_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_I8, static_cast<std::int64_t>(copy));
    for (ggml_tensor* t : {weight_, input_, target_}) {
      SLUICE_ASSIGN(const Address at, place(t));
      SLUICE_TRY(arena_.bind(t, at));
    }
    for (Address& at : places_) {
      SLUICE_ASSIGN(at, place(input_));
    }
    const std::vector<std::byte> zeros(ggml_nbytes(weight_));
    for (ggml_tensor* t : {weight_, input_}) SLUICE_TRY(device_.set(t, 0, zeros, 0, cancel_));
    return {};
  }

  Result<Address> place(const ggml_tensor* like) {
    const Bytes size = align_up(ggml_backend_buft_get_alloc_size(device_.buffer_type(), like), device_.info().alignment);
    SLUICE_ASSIGN(const auto shelf, arena_.add_shelf(size));
    return shelf.base;
  }

  Device& device_;
  const CancelToken& cancel_;
  Arena arena_;
  ggml_context_ptr context_;
  ggml_tensor *weight_ = nullptr, *input_ = nullptr, *target_ = nullptr;
  std::array<Address, 2> places_{};
  std::int64_t n_ = 0;
};

double rate(double amount, double seconds) { return seconds > 0 ? round_rate(amount / seconds) : 0; }

/// The hidden share of `copies` copies beside a computation about as long.
Result<double> measure_overlap(Bench& bench, Timer& timer, std::span<const std::byte> from, double copy_s, double product_s) {
  if (copy_s <= 0 || product_s <= 0) return -1;
  // Long enough for threads to start, short enough for slow devices.
  const double goal = std::clamp(std::max(copy_s, product_s) * 2, 0.05, 1.0);
  const auto count = [&](double each) {
    return static_cast<int>(std::clamp(std::ceil(goal / each), 1.0, double(kMostProducts)));
  };
  SLUICE_ASSIGN(const Products products, bench.products(count(product_s)));
  const int copies = count(copy_s);
  const auto copy_all = [&](Moment at) -> Result<Moment> {
    for (int i = 0; i < copies; ++i) {
      SLUICE_ASSIGN(at, bench.set(from, at));
    }
    return at;
  };
  const auto compute = [&](Moment at) { return bench.compute(products, at); };
  const auto both = [&](Moment at) -> Result<Moment> {
    Result<Moment> copied = at;
    NamedThread copier("sluice-measure", [&] { copied = copy_all(at); });
    auto computed = compute(at);
    copier.join();
    if (!computed) return computed;
    if (!copied) return copied;
    return std::max(*copied, *computed);
  };
  double alone_copy = 1e9, alone_compute = 1e9, together = 1e9;
  for (int run = 0; run < 3; ++run) {
    SLUICE_ASSIGN(const double c, timer.time(copy_all));
    SLUICE_ASSIGN(const double p, timer.time(compute));
    SLUICE_ASSIGN(const double b, timer.time(both));
    alone_copy = std::min(alone_copy, c);
    alone_compute = std::min(alone_compute, p);
    together = std::min(together, b);
  }
  const double hidden = (alone_copy + alone_compute - together) / std::min(alone_copy, alone_compute);
  return std::round(std::clamp(hidden, 0.0, 1.0) * 100) / 100;
}

}  // namespace

Result<MeasuredRates> measure_rates(Device& device, const CancelToken& cancel) {
  SLUICE_ASSIGN(const auto bench, Bench::open(device, cancel));
  Timer timer;
  MeasuredRates m;
  std::vector<std::byte> pageable(bench->copied());
  SLUICE_ASSIGN(auto host, device.allocate_host(bench->copied()));
  const std::span<std::byte> pinned = host->pinned() ? host->bytes() : std::span<std::byte>{};
  const auto bytes = static_cast<double>(bench->copied());
  double copy_s = 0;
  for (const std::span<std::byte> memory : {std::span(pageable), pinned}) {
    if (memory.empty()) continue;
    std::ranges::fill(memory, std::byte{0});
    SLUICE_ASSIGN(copy_s, timer.best([&](Moment at) { return bench->set(memory, at); }));
    SLUICE_ASSIGN(const double back_s, timer.best([&](Moment at) { return bench->get(memory, at); }));
    (memory.data() == pinned.data() ? m.to_device_pinned : m.to_device) = rate(bytes, copy_s);
    (memory.data() == pinned.data() ? m.from_device_pinned : m.from_device) = rate(bytes, back_s);
  }
  SLUICE_ASSIGN(m.latency_s, timer.best([&](Moment at) { return bench->set(std::span(pageable).first(64), at); }));
  m.latency_s = round_rate(m.latency_s);
  SLUICE_ASSIGN(const Products one, bench->products(1));
  SLUICE_ASSIGN(const double product_s, timer.best([&](Moment at) { return bench->compute(one, at); }));
  m.flops_per_s = rate(bench->product_flops(), product_s);
  const std::span<const std::byte> source = pinned.empty() ? std::span<const std::byte>(pageable) : pinned;
  SLUICE_ASSIGN(m.overlap, measure_overlap(*bench, timer, source, copy_s, product_s));
  return m;
}

}  // namespace sluice
