// What a device has to do for the engine, tried on the one that SLUICE_TEST_DEVICE names (tools/ci/device-matrix), or on the
// simulated one.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <random>
#include <thread>

#include "device/arena.h"
#include "device/probe.h"
#include "nn/attention.h"
#include "nn/conv2d.h"
#include "nn/norm.h"
#include "nn/product.h"
#include "support/rig.h"

using namespace sluice;
using namespace sluice::test;

namespace {

std::string device_name() {
  const char* name = std::getenv("SLUICE_TEST_DEVICE");
  return name && *name ? name : "sim:threads=1";
}

std::unique_ptr<Device> open_tested() {
  auto device = open_device(device_name());
  REQUIRE_MESSAGE(device, device.error().message);
  return *std::move(device);
}

bool is_cpu(const Device& device) {
  return device.info().kind == DeviceKind::cpu || device.info().kind == DeviceKind::simulated;
}

/// What rounding one factor of every product to 11 bits costs, five times over; the CPU's products with quantised weights round
/// the other factor to 8 bits within blocks of 32.
constexpr double kHalf = 2e-3, kEightBits = 1.5e-2;

std::vector<float> numbers(std::size_t count, unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = scale * (static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
  return values;
}

/// rms(got − want) ÷ rms(want); not a number if anything is.
double rel_rms(const std::vector<float>& got, const std::vector<float>& want) {
  REQUIRE(got.size() == want.size());
  double error = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    size += double{want[i]} * want[i];
  }
  return std::sqrt(error / size);
}

/// A graph with memory for each of its tensors on a device.
class Bound {
 public:
  using Build = std::function<ggml_tensor*(Bound&)>;
  Bound(Device& device, const Build& build)
      : device_(device), context_(ggml_init({.mem_size = 1 << 20, .mem_buffer = nullptr, .no_alloc = true})) {
    out_ = build(*this);
    graph_ = ggml_new_graph_custom(context(), 512, false);
    ggml_build_forward_expand(graph_, out_);
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
      CAPTURE(ggml_op_desc(ggml_graph_node(graph_, i)));
      CHECK(device.supports(ggml_graph_node(graph_, i)));
    }
    Bytes end = 0;
    std::vector<std::pair<ggml_tensor*, Address>> places;
    for (ggml_tensor* t = ggml_get_first_tensor(context()); t; t = ggml_get_next_tensor(context(), t)) {
      places.emplace_back(t, end);
      if (!t->view_src) end += align_up(ggml_backend_buft_get_alloc_size(device.buffer_type(), t), device.info().alignment);
    }
    auto arena = Arena::open(device, end);
    REQUIRE_MESSAGE(arena, arena.error().message);
    arena_ = *std::move(arena);
    for (const auto& [tensor, at] : places) {
      if (tensor->view_src)
        REQUIRE(ggml_backend_view_init(tensor) == GGML_STATUS_SUCCESS);
      else
        REQUIRE(arena_.bind(tensor, at));
    }
  }
  ggml_context* context() const { return context_.get(); }
  ggml_tensor* leaf(ggml_type type, std::initializer_list<std::int64_t> shape) {
    leaves_.push_back(ggml_new_tensor(context(), type, static_cast<int>(shape.size()), shape.begin()));
    return leaves_.back();
  }
  ggml_tensor* leaf(std::size_t i) const { return leaves_.at(i); }
  ggml_tensor* out() const { return out_; }
  void set(std::size_t leaf, std::span<const std::byte> bytes) {
    REQUIRE(device_.set(leaves_.at(leaf), 0, bytes, 0, CancelToken{}));
  }
  /// Stores f32 values as the leaf's type. Returns what is there then.
  std::vector<float> set(std::size_t i, const std::vector<float>& values) {
    ggml_tensor* t = leaves_.at(i);
    REQUIRE(static_cast<std::int64_t>(values.size()) == ggml_nelements(t));
    if (t->type == GGML_TYPE_F32) {
      set(i, std::as_bytes(std::span(values)));
      return values;
    }
    std::vector<std::byte> bytes(ggml_nbytes(t));
    ggml_quantize_chunk(t->type, values.data(), bytes.data(), 0, ggml_nelements(t) / t->ne[0], t->ne[0], nullptr);
    set(i, bytes);
    std::vector<float> back(values.size());
    ggml_get_type_traits(t->type)->to_float(bytes.data(), back.data(), ggml_nelements(t));
    return back;
  }
  std::vector<float> run() {
    const auto ended = device_.compute(graph_, 0, CancelToken{});
    REQUIRE_MESSAGE(ended, ended.error().message);
    std::vector<float> values(static_cast<std::size_t>(ggml_nelements(out_)));
    REQUIRE(device_.get(out_, 0, std::as_writable_bytes(std::span(values)), 0));
    return values;
  }

 private:
  Device& device_;
  ggml_context_ptr context_;
  std::vector<ggml_tensor*> leaves_;
  ggml_tensor* out_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  Arena arena_;
};

/// weight [k, m] and input [k, n] as leaves 0 and 1.
Bound product_on(Device& device, ggml_type type, std::int64_t k, std::int64_t m, std::int64_t n) {
  return Bound(device, [&](Bound& b) {
    ggml_tensor* weight = b.leaf(type, {k, m});
    return product(b.context(), weight, b.leaf(GGML_TYPE_F32, {k, n}));
  });
}

std::vector<float> product_of(const std::vector<float>& weight, const std::vector<float>& input, std::size_t k) {
  std::vector<float> out;
  for (std::size_t column = 0; column < input.size() / k; ++column) {
    for (std::size_t row = 0; row < weight.size() / k; ++row) {
      double sum = 0;
      for (std::size_t i = 0; i < k; ++i) sum += double{weight[row * k + i]} * input[column * k + i];
      out.push_back(static_cast<float>(sum));
    }
  }
  return out;
}

}  // namespace

TEST_CASE("device: 16 budgets from the smallest to the full size give one latent, and none is exceeded") {
  RigOptions options;
  options.device = device_name();
  auto opened = Rig::open(options);
  REQUIRE_MESSAGE(opened, opened.error().message);
  Rig& rig = **opened;
  const Request request = one_step();
  auto prepared = rig.prepare(request);
  REQUIRE_MESSAGE(prepared, prepared.error().message);
  const Bytes backend = (*prepared)->backend();
  const Bytes smallest = (*prepared)->plan().smallest + backend, full = (*prepared)->plan().full + backend;
  REQUIRE(smallest < full);
  Drawn first;
  for (Bytes i = 0; i < 16; ++i) {
    const Bytes budget = smallest + (full - smallest) * i / 15;
    CAPTURE(budget);
    rig.set_budget(budget);
    rig.any_device().ledger().reset_peak();
    auto drawn = rig.draw(request);
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    CHECK(rig.any_device().ledger().report().peak <= budget);
    if (i == 0) first = std::move(*drawn);
    CHECK(std::ranges::all_of(first.latents.at(0), [](float v) { return std::isfinite(v); }));
    if (i > 0) CHECK(drawn->latents == first.latents);
    if (i > 0) CHECK(drawn->pixels == first.pixels);
    // What the backend holds was accounted for, where the device can tell.
    if (const auto held = rig.any_device().backend_now()) CHECK(*held <= backend);
  }
  rig.set_budget(smallest - 1);
  auto refused = rig.draw(request);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::over_budget);
}

TEST_CASE("device: every weight type it multiplies with may be streamed as a raw image, and its products are right") {
  auto device = open_tested();
  // A software driver compiles each of the kernels for many columns for a quarter of a minute: there a few stand for the rest.
  const bool slow = device->info().kind == DeviceKind::gpu && device->info().host_memory;
  const auto few = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K};
  for (const ggml_type type : kWeightTypes) {
    CAPTURE(ggml_type_name(type));
    CHECK(device->raw_images(type));
    // One kernel serves few columns, another many.
    for (const std::int64_t columns : {1, 20}) {
      if (columns > 1 && slow && std::ranges::find(few, type) == few.end()) continue;
      CAPTURE(columns);
      Bound bound = product_on(*device, type, 256, 48, columns);
      const auto weight = bound.set(0, numbers(256 * 48, 1));
      const auto input = bound.set(1, numbers(static_cast<std::size_t>(256 * columns), 2));
      const auto got = bound.run();
      const bool f32 = type == GGML_TYPE_F32 && is_cpu(*device);
      const double allowed = f32 ? 1e-5 : type == GGML_TYPE_F32 || type == GGML_TYPE_F16 ? kHalf : kEightBits;
      CHECK(rel_rms(got, product_of(weight, input, 256)) <= allowed);
      CHECK(bound.run() == got);
    }
  }
  CHECK_FALSE(device->raw_images(GGML_TYPE_I32));
  CHECK(device->live_buffers() == 0);
}

TEST_CASE("device: sums are f32: beyond what f16 can hold, and exact there") {
  auto device = open_tested();
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16}) {
    for (const std::int64_t columns : {1, 40}) {
      CAPTURE(ggml_type_name(type));
      CAPTURE(columns);
      Bound bound = product_on(*device, type, 4096, 32, columns);
      bound.set(0, std::vector<float>(4096 * 32, 1.0f));
      bound.set(1, std::vector<float>(static_cast<std::size_t>(4096 * columns), 32.0f));
      CHECK(bound.run() == std::vector<float>(static_cast<std::size_t>(32 * columns), 131072.0f));
    }
  }
}

TEST_CASE("device: its operator variants agree with the CPU's") {
  auto device = open_tested();
  auto cpu = open_device("cpu:threads=1").value();
  const Variants own = variants_for(ggml_backend_buft_get_device(device->buffer_type()));
  const Variants theirs = variants_for(nullptr);
  CHECK(own.flash == is_cpu(*device));
  const auto compare = [&](const char* what, const std::function<ggml_tensor*(Bound&, const Variants&)>& build,
                           const Variants& variants) {
    CAPTURE(what);
    Bound reference(*cpu, [&](Bound& b) { return build(b, theirs); });
    Bound tested(*device, [&](Bound& b) { return build(b, variants); });
    for (std::size_t i = 0; i < 3; ++i) {
      const auto values = numbers(static_cast<std::size_t>(ggml_nelements(tested.leaf(i))), static_cast<unsigned>(i));
      reference.set(i, values);
      tested.set(i, values);
    }
    CHECK(rel_rms(tested.run(), reference.run()) <= kHalf);
  };
  const auto convolution = [](Bound& b, const Variants& variants) {
    ggml_tensor* kernel = b.leaf(GGML_TYPE_F16, {3, 3, 16, 24});
    ggml_tensor* bias = b.leaf(GGML_TYPE_F32, {24});
    GraphBuilder g(b.context(), variants, {kernel, bias});
    const Conv2d conv{.w = WeightRef{0}, .b = WeightRef{1}, .stride = 1, .padding = 1};
    return conv(g, b.leaf(GGML_TYPE_F32, {16, 16, 16, 1}));
  };
  compare("convolution, unfolded", convolution, Variants{.im2col_limit = GiB});
  compare("convolution, direct", convolution, Variants{.im2col_limit = 0});
  const auto attend = [](bool causal) {
    return [causal](Bound& b, const Variants& variants) {
      GraphBuilder g(b.context(), variants, {});
      ggml_tensor *q = b.leaf(GGML_TYPE_F32, {64, 40}), *k = b.leaf(GGML_TYPE_F32, {64, 40}),
                  *v = b.leaf(GGML_TYPE_F32, {64, 40});
      return attention(g, q, k, v, 4, causal);
    };
  };
  compare("attention", attend(false), own);
  compare("attention, causal", attend(true), own);
  compare("attention, few queries at a time", attend(false), Variants{.score_limit = 4096, .flash = false});
  const auto normalise = [](Bound& b, const Variants& variants) {
    ggml_tensor *w = b.leaf(GGML_TYPE_F32, {32}), *bias = b.leaf(GGML_TYPE_F32, {32});
    GraphBuilder g(b.context(), variants, {w, bias});
    return GroupNorm{.w = WeightRef{0}, .b = WeightRef{1}}(g, b.leaf(GGML_TYPE_F32, {8, 8, 32, 1}));
  };
  compare("group norm", normalise, own);
}

TEST_CASE("device: host memory for copies is pinned where the driver has such") {
  auto device = open_tested();
  auto host = device->allocate_host(MiB);
  REQUIRE(host);
  REQUIRE((*host)->bytes().size() == MiB);
  if (device->info().kind == DeviceKind::gpu) CHECK((*host)->pinned());
  if (device->info().kind == DeviceKind::cpu) CHECK_FALSE((*host)->pinned());
  Bound bound(*device, [](Bound& b) { return ggml_scale(b.context(), b.leaf(GGML_TYPE_F32, {256 * 1024}), 1.0f); });
  const auto values = numbers(256 * 1024, 3);
  std::memcpy((*host)->bytes().data(), values.data(), MiB);
  bound.set(0, (*host)->bytes());
  CHECK(bound.run() == values);
}

TEST_CASE("device: copies longer than a piece arrive whole, and none starts once cancelled") {
  auto device = open_tested();
  constexpr Bytes kSize = 40 * MiB + 12;
  auto arena = Arena::open(*device, align_up(kSize, device->info().alignment));
  REQUIRE(arena);
  const ggml_context_ptr context{ggml_init({.mem_size = 4096, .mem_buffer = nullptr, .no_alloc = true})};
  ggml_tensor* tensor = ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, static_cast<std::int64_t>(kSize));
  REQUIRE(arena->bind(tensor, 0));
  std::vector<std::byte> sent(kSize), got(kSize);
  std::mt19937 random(5);
  for (std::size_t i = 0; i + 4 <= sent.size(); i += 4) {
    const auto word = static_cast<std::uint32_t>(random());
    std::memcpy(sent.data() + i, &word, 4);
  }
  REQUIRE(device->set(tensor, 0, sent, 0, CancelToken{}));
  REQUIRE(device->get(tensor, 0, got, 0));
  CHECK(got == sent);
  // A part that begins and ends within pieces.
  const std::span<const std::byte> part = std::span(sent).subspan(100, 20 * MiB + 4);
  REQUIRE(device->set(tensor, 17 * MiB, part, 0, CancelToken{}));
  std::copy(part.begin(), part.end(), sent.begin() + 17 * MiB);
  REQUIRE(device->get(tensor, 0, got, 0));
  CHECK(got == sent);
  CancelToken cancelled;
  cancelled.cancel();
  CHECK(device->set(tensor, 0, sent, 0, cancelled).error().code == Code::cancelled);
}

TEST_CASE("device: a buffer that no device has is an error, and the device works on") {
  auto device = open_tested();
  const auto refused = device->allocate(Bytes{1} << 50);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::device_oom);
  CHECK(device->live_buffers() == 0);
  CHECK(device->allocate(MiB));
}

TEST_CASE("device: buffers that go make room for others") {
  auto device = open_tested();
  const MemoryView memory = device->memory();
  const Bytes size = memory.known ? std::min<Bytes>(256 * MiB, memory.free / 4) : 64 * MiB;
  // In all more than there is, on devices of up to 10 GiB.
  for (int i = 0; i < 40; ++i) {
    CAPTURE(i);
    const auto buffer = device->allocate(size);
    REQUIRE_MESSAGE(buffer, buffer.error().message);
    CHECK(device->live_buffers() == 1);
  }
  CHECK(device->live_buffers() == 0);
}

TEST_CASE("device: copies on another thread change nothing in what is computed beside them, nor the other way round") {
  auto device = open_tested();
  Bound bound = product_on(*device, GGML_TYPE_F16, 256, 128, 64);
  const auto weight = bound.set(0, numbers(256 * 128, 1)), input = bound.set(1, numbers(256 * 64, 2));
  const auto want = bound.run();
  constexpr Bytes kSize = 3 * MiB;
  auto arena = Arena::open(*device, kSize);
  REQUIRE(arena);
  const ggml_context_ptr context{ggml_init({.mem_size = 4096, .mem_buffer = nullptr, .no_alloc = true})};
  ggml_tensor* streamed = ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, static_cast<std::int64_t>(kSize));
  REQUIRE(arena->bind(streamed, 0));
  std::atomic<bool> done = false;
  std::atomic<int> copies = 0, wrong = 0;
  std::thread link([&] {
    std::vector<std::byte> sent(kSize), got(kSize);
    for (unsigned round = 0; !done || round < 4; ++round) {
      std::ranges::fill(sent, static_cast<std::byte>(round * 37 + 1));
      const bool copied = device->set(streamed, 0, sent, 0, CancelToken{}) && device->get(streamed, 0, got, 0);
      if (!copied || got != sent) ++wrong;
      ++copies;
    }
  });
  int differed = 0;
  for (int i = 0; i < 60; ++i) differed += bound.run() != want;
  done = true;
  link.join();
  CHECK(differed == 0);
  CHECK(wrong == 0);
  CHECK(copies >= 4);
}

TEST_CASE("device: an operation it lacks is refused before anything is allocated") {
  // Graphics backends have no way to call back; the CPU has no gradient of a softmax with a bias.
  Model odd;
  const Value x = odd.add_input("x", Refresh::every_sweep);
  auto tested = open_tested();
  const bool cpu = is_cpu(*tested);
  BlockDef def(odd, "strange");
  def.reads({x});
  const Value y = def.writes();
  def.finish([cpu](GraphBuilder& g, const Tensors& in) -> Tensors {
    ggml_context* c = g.context();
    if (!cpu) {
      const auto callback = [](ggml_tensor*, const ggml_tensor*, int, int, void*) {};
      return {ggml_map_custom1(c, in[0], callback, 1, nullptr)};
    }
    return {ggml_soft_max_ext_back(c, in[0], in[0], 1.0f, 1.0f)};
  });
  odd.outputs = {y};
  WeightStore store(*tested, WeightStore::Options{});
  DeviceMemory memory(*tested, store, DeviceMemory::Options{});
  Session session({&memory}, store, SessionOptions{});
  ComponentSpec spec;
  spec.name = "odd";
  spec.model = &odd;
  spec.sources = {{}};
  const auto component = store.add(spec);
  REQUIRE_MESSAGE(component, component.error().message);
  StageSpec stage;
  stage.component = *component;
  stage.lanes = {LaneShape{{Shape{64, 4, 1, 1}}}};
  const auto refused = session.prepare({stage});
  REQUIRE_FALSE(refused);
  CAPTURE(refused.error().message);
  CHECK(refused.error().code == Code::unsupported);
  CHECK(refused.error().message.find("strange") != std::string::npos);
  CHECK(tested->live_buffers() == 0);
}
