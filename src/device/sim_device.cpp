#include "device/sim_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "base/pages.h"
#include "device/graph_cost.h"
#include "device/memory_report.h"
#include "device/registry.h"
#include "device/row_split.h"

namespace sluice {
namespace {

/// Rows of a weight that is spread over simulated devices lie together in so many, as for the tiles of a card's products.
constexpr std::int64_t kRowTile = 32;
/// What all simulated devices have in common.
constexpr char kFamily = 0;

Moment nanoseconds(double seconds) { return static_cast<Moment>(std::llround(seconds * 1e9)); }

/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014), the mixing function of splitmix64.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

bool is_view_op(const ggml_tensor* t) {
  return t->op == GGML_OP_NONE || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_VIEW || t->op == GGML_OP_PERMUTE ||
         t->op == GGML_OP_TRANSPOSE;
}

/// Pageable in truth. Its bytes count against the cap of pinned ones until it goes.
class SimPinnedBuffer final : public HostBuffer {
 public:
  SimPinnedBuffer(std::unique_ptr<HostBuffer> memory, std::function<void()> gone)
      : memory_(std::move(memory)), gone_(std::move(gone)) {}
  SimPinnedBuffer(const SimPinnedBuffer&) = delete;
  SimPinnedBuffer& operator=(const SimPinnedBuffer&) = delete;
  ~SimPinnedBuffer() override { gone_(); }
  std::span<std::byte> bytes() override { return memory_->bytes(); }
  bool pinned() const override { return true; }

 private:
  std::unique_ptr<HostBuffer> memory_;
  std::function<void()> gone_;
};

}  // namespace

/// How the rows of the weights in a buffer are spread that this device computes with.
struct SimDevice::Split {
  std::vector<float> shares;
  std::size_t own = 0;  // which of them is this device's
  Bytes own_bytes = 0;
};

struct SimDevice::State {
  using Clock = std::chrono::steady_clock;
  /// A buffer that was freed and whose bytes the driver has not got back yet.
  struct Late {
    Bytes size = 0;
    Clock::time_point due;
    std::uint64_t due_call = 0;
  };

  struct Block {
    Pages pages;
    Bytes size = 0;
    std::uint32_t number = 0;
    int users = 0;  // operations that may touch the pages now
  };

  mutable std::mutex mutex;
  std::map<ggml_backend_buffer_t, Block> blocks;
  std::map<ggml_backend_buffer_t, Split> splits;  // those of `blocks` that are, and some without memory
  std::size_t parts = 0;                          // of weights that other devices compute with
  std::vector<Late> late;
  Clock::duration late_by{};
  std::uint64_t late_by_calls = 0, waiting_calls = 0;  // calls in which a driver may get freed bytes back
  Bytes live = 0, backend = 0, high_water = 0, pinned = 0;
  bool warned_pageable = false;
  std::uint32_t numbered = 0;
  std::uint64_t alloc_calls = 0, host_calls = 0, copy_calls = 0, compute_calls = 0;
  Moment weights_clock = 0, state_clock = 0, get_clock = 0, compute_clock = 0;
  SimCounters counters;
  std::vector<SimEvent> log;
  std::function<void(const SimEvent&)> hook;
  std::optional<std::pair<Bytes, Bytes>> report;

  /// Notes the start of an operation and tells the hook.
  std::uint64_t begin(SimEvent event) {
    std::function<void(const SimEvent&)> called;
    {
      std::lock_guard lock(mutex);
      event.index = log.size();
      log.push_back(event);
      called = hook;
    }
    if (called) called(event);
    return event.index;
  }

  /// With the lock held, as the next two.
  void settle_late() {
    std::erase_if(late, [&](const Late& l) { return waiting_calls >= l.due_call && Clock::now() >= l.due; });
  }
  Bytes held() const {
    Bytes bytes = live + backend;
    for (const Late& l : late) bytes += l.size;
    return bytes;
  }
  std::size_t buffers() const { return blocks.size() + parts + late.size(); }

  void grow_high_water() { high_water = std::max(high_water, live + backend); }

  void freed(ggml_backend_buffer_t buffer) {
    std::uint32_t number = 0;
    Bytes size = 0;
    {
      std::lock_guard lock(mutex);
      const Block& block = blocks.at(buffer);
      const auto split = splits.find(buffer);
      number = block.number;
      size = split == splits.end() ? block.size : split->second.own_bytes;
      if (split != splits.end()) splits.erase(split);
    }
    const auto index = begin({.kind = SimEvent::Kind::free, .bytes = size, .buffer = number});
    ggml_backend_buffer_free(buffer);
    std::lock_guard lock(mutex);
    blocks.erase(buffer);
    give_back(size);
    log[index].ok = true;
  }

  /// With the lock held.
  void give_back(Bytes size) {
    live -= size;
    if (late_by > Clock::duration::zero() || late_by_calls > 0)
      late.push_back({size, Clock::now() + late_by, waiting_calls + late_by_calls});
    ++counters.frees;
  }

  /// The part of a weight that another device computed with is gone.
  void part_freed(Bytes size) {
    const auto index = begin({.kind = SimEvent::Kind::free, .bytes = size});
    std::lock_guard lock(mutex);
    --parts;
    give_back(size);
    log[index].ok = true;
  }

  /// Where `data` lies: buffer number and offset. Nothing for memory that is not the device's.
  void locate(ggml_backend_buffer_t buffer, const void* data, SimEvent& event) const {
    std::lock_guard lock(mutex);
    const auto found = blocks.find(buffer);
    if (found == blocks.end()) return;
    event.buffer = found->second.number;
    event.offset = static_cast<Bytes>(static_cast<const std::byte*>(data) - found->second.pages.data());
  }
};

/// Makes the pages of some buffers touchable while it lives.
class SimDevice::Open {
 public:
  Open(State& state, std::set<ggml_backend_buffer_t> buffers) : state_(state), buffers_(std::move(buffers)) {
    std::lock_guard lock(state_.mutex);
    for (auto it = buffers_.begin(); it != buffers_.end();) {
      const auto found = state_.blocks.find(*it);
      if (found == state_.blocks.end()) {
        it = buffers_.erase(it);  // not the device's: a mapped file, for instance
        continue;
      }
      if (found->second.users++ == 0)
        if (auto allowed = found->second.pages.allow(); !allowed && status_) status_ = std::move(allowed);
      ++it;
    }
  }
  ~Open() {
    std::lock_guard lock(state_.mutex);
    for (ggml_backend_buffer_t buffer : buffers_) {
      auto& block = state_.blocks.at(buffer);
      if (--block.users == 0) static_cast<void>(block.pages.forbid());
    }
  }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
  const Status& status() const { return status_; }

 private:
  State& state_;
  std::set<ggml_backend_buffer_t> buffers_;
  Status status_;
};

Result<std::unique_ptr<SimDevice>> SimDevice::open(const SimOptions& options) {
  SLUICE_TRY(options.validate());
  load_backends();
  ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (!dev) return fail(Code::device_failed, "the simulated device computes on the CPU, and ggml has no CPU backend here");
  std::unique_ptr<SimDevice> device{new SimDevice};
  device->options_ = options;
  static std::atomic<int> opened{0};
  device->card_ = opened++;
  // The CPU's own ledger books nothing of the simulated memory; it only lends the probes their moment of room.
  SLUICE_ASSIGN(device->cpu_, GgmlDevice::open(dev, {.threads = options.threads}, std::make_shared<Ledger>()));
  DeviceInfo& info = device->info_;
  info = device->cpu_->info();
  info.name = options.label.empty() ? "sim" : "sim:" + options.label;
  info.description = "simulated on " + info.description;
  info.device_id = info.name;
  info.kind = DeviceKind::simulated;
  info.host_memory = false;
  info.max_buffer = std::min(options.preferred_buffer.value_or(options.max_buffer), GiB);
  device->state_ = std::make_shared<State>();
  device->state_->backend = device->state_->high_water = options.backend;
  device->state_->late_by = std::chrono::nanoseconds(nanoseconds(options.late_free_s));
  device->state_->late_by_calls = options.late_free_calls;
  return device;
}

MemoryView SimDevice::memory() const {
  Bytes free = 0, total = 0;
  {
    std::lock_guard lock(state_->mutex);
    state_->settle_late();
    free = options_.free.value_or(options_.memory - std::min(options_.memory, state_->held()));
    total = options_.total.value_or(options_.memory);
    if (state_->report) std::tie(free, total) = *state_->report;
  }
  const auto books = ledger_.report();
  return believe_memory(free, total, books.total + books.backend);
}

ggml_backend_buffer_type_t SimDevice::buffer_type() const { return ggml_backend_cpu_buffer_type(); }

tl::unexpected<Error> SimDevice::refusal(Bytes size, std::string_view why) const {
  const Bytes free = options_.memory - std::min(options_.memory, state_->held());
  return fail(Code::device_oom,
              fmt::format("sim refuses a buffer of {} with {} free: {}", format_bytes(size), format_bytes(free), why), size,
              free);
}

Status SimDevice::ask_for(Bytes size) {
  State& state = *state_;
  ++state.waiting_calls;
  state.settle_late();
  const std::uint64_t call = ++state.alloc_calls;
  if (options_.fail_alloc > 0 && call >= options_.fail_alloc && call < options_.fail_alloc + options_.fail_allocs)
    return refusal(size, "allocation failed to order");
  if (size > options_.memory - std::min(options_.memory, state.held())) return refusal(size, "so much is not left");
  if (size > options_.max_buffer) return refusal(size, "larger than its largest buffer");
  if (options_.max_buffers > 0 && state.buffers() >= static_cast<std::size_t>(options_.max_buffers))
    return refusal(size, fmt::format("it has no more than {} buffers", options_.max_buffers));
  if (options_.fragment && size > *options_.fragment && state.buffers() > 0)
    return refusal(size, fmt::format("no piece above {} is free in one", format_bytes(*options_.fragment)));
  return {};
}

Result<ggml_backend_buffer_t> SimDevice::map_buffer(Bytes size) {
  auto pages = Pages::map(size);
  if (!pages) return refusal(size, pages.error().message);
  if (options_.poison) std::memset(pages->data(), 0xFF, static_cast<std::size_t>(size));
  ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(pages->data(), static_cast<std::size_t>(size));
  if (!buffer) return refusal(size, "ggml cannot wrap its memory");
  if (auto forbidden = pages->forbid(); !forbidden && forbidden.error().code != Code::unsupported) {
    ggml_backend_buffer_free(buffer);
    return refusal(size, forbidden.error().message);
  }
  state_->blocks[buffer] = {.pages = std::move(*pages), .size = size, .number = ++state_->numbered};
  return buffer;
}

void SimDevice::count_buffer(Bytes size, std::uint64_t event) {
  state_->live += size;
  state_->grow_high_water();
  ++state_->counters.allocs;
  state_->log[event].buffer = state_->numbered;
  state_->log[event].ok = true;
}

Result<DeviceBuffer> SimDevice::allocate(Bytes size) {
  if (size == 0) return fail(Code::invalid_argument, "a buffer of 0 bytes cannot be had on sim");
  const auto index = state_->begin({.kind = SimEvent::Kind::alloc, .bytes = size});
  std::lock_guard lock(state_->mutex);
  SLUICE_TRY(ask_for(size));
  SLUICE_ASSIGN(ggml_backend_buffer_t buffer, map_buffer(size));
  count_buffer(size, index);
  return DeviceBuffer{buffer, DeviceBufferDeleter{[shared = state_](ggml_backend_buffer_t gone) { shared->freed(gone); }}};
}

std::optional<RowSplitOffer> SimDevice::row_split() const {
  if (!options_.row_split) return std::nullopt;
  return RowSplitOffer{&kFamily, card_, true};
}

Status SimDevice::book_part(Bytes size) {
  const auto index = state_->begin({.kind = SimEvent::Kind::alloc, .bytes = size});
  std::lock_guard lock(state_->mutex);
  SLUICE_TRY(ask_for(size));
  ++state_->parts;
  state_->live += size;
  state_->grow_high_water();
  ++state_->counters.allocs;
  state_->log[index].ok = true;
  return {};
}

Result<DeviceBuffer> SimDevice::allocate_split(std::span<ggml_tensor* const> tensors, std::span<const RowShare> shares) {
  Split split;
  std::vector<SimDevice*> devices;
  for (const RowShare& share : shares) {
    auto* sim = dynamic_cast<SimDevice*>(share.device);
    if (!options_.row_split || !sim || !sim->options_.row_split)
      return fail(Code::unsupported, fmt::format("{} cannot share rows with {}", info_.name, share.device->info().name));
    if (sim == this) split.own = devices.size();
    devices.push_back(sim);
    split.shares.push_back(share.share);
  }
  std::vector<Bytes> sizes(shares.size(), 0), offsets;
  Bytes whole = 0;
  for (const ggml_tensor* tensor : tensors) {
    const auto rows = split_rows(tensor->ne[1], split.shares, kRowTile);
    for (std::size_t i = 0; i < rows.size(); ++i) sizes[i] += split_size(tensor->type, tensor->ne[0], rows[i]);
    offsets.push_back(whole);
    whole += align_up(ggml_nbytes(tensor), info_.alignment);
  }
  split.own_bytes = shares.empty() ? 0 : sizes[split.own];

  std::vector<std::pair<std::shared_ptr<State>, Bytes>> parts;
  const auto give_back = [](const auto& list) {
    for (const auto& [state, bytes] : list) state->part_freed(bytes);
  };
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i] == this || sizes[i] == 0) continue;
    if (auto booked = devices[i]->book_part(sizes[i]); !booked) {
      give_back(parts);
      return fail(std::move(booked).error());
    }
    parts.emplace_back(devices[i]->state_, sizes[i]);
  }
  auto made = place_split(whole, split);
  if (!made) {
    give_back(parts);
    return fail(std::move(made).error());
  }
  for (std::size_t i = 0; i < tensors.size(); ++i)
    ggml_backend_tensor_alloc(
        *made, tensors[i], static_cast<std::byte*>(ggml_backend_buffer_get_base(*made)) + static_cast<std::size_t>(offsets[i]));
  return DeviceBuffer{*made, DeviceBufferDeleter{[shared = state_, parts, give_back, whole](ggml_backend_buffer_t gone) {
                        if (whole > 0) {
                          shared->freed(gone);
                        } else {
                          std::unique_lock lock(shared->mutex);
                          shared->splits.erase(gone);
                          lock.unlock();
                          ggml_backend_buffer_free(gone);
                        }
                        give_back(parts);
                      }}};
}

Result<ggml_backend_buffer_t> SimDevice::place_split(Bytes whole, const Split& split) {
  if (whole == 0) {
    ggml_backend_buffer_t empty = ggml_backend_buft_alloc_buffer(buffer_type(), 0);
    if (!empty) return fail(Code::device_oom, "ggml makes no empty buffer");
    std::lock_guard lock(state_->mutex);
    state_->splits[empty] = split;
    return empty;
  }
  const auto index = state_->begin({.kind = SimEvent::Kind::alloc, .bytes = split.own_bytes});
  std::lock_guard lock(state_->mutex);
  SLUICE_TRY(ask_for(split.own_bytes));
  SLUICE_ASSIGN(ggml_backend_buffer_t buffer, map_buffer(whole));
  state_->splits[buffer] = split;
  count_buffer(split.own_bytes, index);
  return buffer;
}

Result<std::unique_ptr<HostBuffer>> SimDevice::allocate_host(Bytes size) {
  {
    std::lock_guard lock(state_->mutex);
    if (++state_->host_calls == options_.fail_host)
      return fail(Code::device_oom, fmt::format("sim refuses {} of host memory: failed to order", format_bytes(size)), size);
  }
  SLUICE_ASSIGN(auto memory, allocate_pageable(info_.name, size));
  if (options_.pinned == 0) return memory;
  bool warn = false;
  {
    std::lock_guard lock(state_->mutex);
    if (size <= options_.pinned - state_->pinned) {
      state_->pinned += size;
      return std::make_unique<SimPinnedBuffer>(std::move(memory), [shared = state_, size] {
        std::lock_guard gone_lock(shared->mutex);
        shared->pinned -= size;
      });
    }
    warn = !std::exchange(state_->warned_pageable, true);
  }
  if (warn)
    log_(LogLevel::warning, "{}: {} of host memory could not be pinned; copies from ordinary memory are slower", info_.name,
         format_bytes(size));
  return memory;
}

void SimDevice::set_log(LogSink log) {
  log_ = log;
  cpu_->set_log(std::move(log));
}

void SimDevice::delay(SimEvent::Kind kind, std::uint64_t ordinal, int side) const {
  if (!options_.delay_seed) return;
  const auto random =
      mix(mix(*options_.delay_seed ^ (std::uint64_t(kind) << 32)) + 2 * ordinal + static_cast<std::uint64_t>(side));
  // Half of them are none at all: what comes first must vary too.
  if (random % 2 == 0) return;
  std::this_thread::sleep_for(
      std::chrono::nanoseconds(nanoseconds(options_.delay_s * static_cast<double>(random >> 11) * 0x1p-53)));
}

Result<Moment> SimDevice::set(ggml_tensor* tensor, Bytes offset, std::span<const std::byte> data, Moment not_before,
                              const CancelToken& cancel, Transfer transfer) {
  SLUICE_TRY(check_range(tensor, offset, data.size()));
  ggml_backend_buffer_t buffer = tensor->view_src ? tensor->view_src->buffer : tensor->buffer;
  SimEvent event{.kind = SimEvent::Kind::set, .bytes = data.size(), .transfer = transfer};
  state_->locate(buffer, static_cast<std::byte*>(tensor->data) + offset, event);
  const auto index = state_->begin(event);
  std::uint64_t ordinal = 0;
  {
    std::lock_guard lock(state_->mutex);
    ordinal = ++state_->copy_calls;
  }
  delay(event.kind, ordinal, 0);
  std::optional<Open> open;
  open.emplace(*state_, std::set{buffer});
  SLUICE_TRY(open->status());
  if (ordinal == options_.fail_copy) {
    // What a broken copy leaves behind is nothing to rely on.
    std::memset(static_cast<std::byte*>(tensor->data) + offset, 0xFF, data.size());
    return fail(Code::device_failed, "sim failed to order while copying to it");
  }
  auto ended = cpu_->set(tensor, offset, data, not_before, cancel, transfer);
  if (!ended) return ended;
  open.reset();
  delay(event.kind, ordinal, 1);

  std::lock_guard lock(state_->mutex);
  SimEvent& logged = state_->log[index];
  if (virtual_time()) {
    Moment& clock = transfer == Transfer::weights ? state_->weights_clock : state_->state_clock;
    logged.start = std::max(clock, not_before);
    const double seconds = options_.link_latency_s +
                           (options_.link_bytes_per_s ? static_cast<double>(data.size()) / *options_.link_bytes_per_s : 0);
    clock = logged.end = logged.start + nanoseconds(seconds);
  } else {
    logged.start = logged.end = *ended;
  }
  logged.ok = true;
  ++state_->counters.sets;
  (transfer == Transfer::weights ? state_->counters.weight_bytes_set : state_->counters.state_bytes_set) += data.size();
  return logged.end;
}

Result<Moment> SimDevice::get(const ggml_tensor* tensor, Bytes offset, std::span<std::byte> data, Moment not_before) {
  SLUICE_TRY(check_range(tensor, offset, data.size()));
  ggml_backend_buffer_t buffer = tensor->view_src ? tensor->view_src->buffer : tensor->buffer;
  SimEvent event{.kind = SimEvent::Kind::get, .bytes = data.size(), .transfer = Transfer::state};
  state_->locate(buffer, static_cast<const std::byte*>(tensor->data) + offset, event);
  const auto index = state_->begin(event);
  std::uint64_t ordinal = 0;
  {
    std::lock_guard lock(state_->mutex);
    ordinal = ++state_->copy_calls;
  }
  delay(event.kind, ordinal, 0);
  if (ordinal == options_.fail_copy) return fail(Code::device_failed, "sim failed to order while copying from it");
  const Open open(*state_, {buffer});
  SLUICE_TRY(open.status());
  SLUICE_ASSIGN(const Moment real_end, cpu_->get(tensor, offset, data, not_before));

  std::lock_guard lock(state_->mutex);
  SimEvent& logged = state_->log[index];
  if (virtual_time()) {
    logged.start = std::max(state_->get_clock, not_before);
    const double seconds = options_.link_latency_s +
                           (options_.link_bytes_per_s ? static_cast<double>(data.size()) / *options_.link_bytes_per_s : 0);
    state_->get_clock = logged.end = logged.start + nanoseconds(seconds);
  } else {
    logged.start = logged.end = real_end;
  }
  logged.ok = true;
  ++state_->counters.gets;
  state_->counters.bytes_got += data.size();
  return logged.end;
}

Status SimDevice::hold_work_buffer(const ggml_cgraph* graph) {
  SLUICE_ASSIGN(const Bytes work, cpu_->work_size(graph));
  const Bytes needed = options_.backend + work;
  Bytes free = 0;
  {
    std::lock_guard lock(state_->mutex);
    if (needed <= state_->backend) return {};
    state_->settle_late();
    free = options_.memory - std::min(options_.memory, state_->held() - state_->backend + options_.backend);
  }
  const auto index = state_->begin({.kind = SimEvent::Kind::backend, .bytes = needed});
  if (work > free)
    return fail(Code::device_oom,
                fmt::format("sim has no {} for its own work buffer, {} free: lower the device budget", format_bytes(work),
                            format_bytes(free)),
                work, free);
  std::lock_guard lock(state_->mutex);
  state_->backend = needed;
  state_->grow_high_water();
  state_->log[index].ok = true;
  return {};
}

Result<Moment> SimDevice::compute(ggml_cgraph* graph, Moment not_before, const CancelToken& cancel) {
  std::set<ggml_backend_buffer_t> buffers;
  const int nodes = ggml_graph_n_nodes(graph);
  for (int i = 0; i < nodes; ++i) {
    const ggml_tensor* node = ggml_graph_node(graph, i);
    if (is_view_op(node) || ggml_is_empty(node)) continue;
    // Where a real backend would end the program.
    if (lacks(node)) return fail(Code::device_failed, fmt::format("sim was given {}, which it lacks", ggml_op_desc(node)));
    const auto touch = [&](const ggml_tensor* t) -> Status {
      if (!t->data && !ggml_is_empty(t))
        return fail(Code::device_failed, fmt::format("tensor '{}' of node '{}' has no memory", t->name, node->name));
      if (ggml_backend_buffer_t buffer = t->view_src ? t->view_src->buffer : t->buffer) buffers.insert(buffer);
      return {};
    };
    SLUICE_TRY(touch(node));
    for (const ggml_tensor* source : node->src)
      if (source) SLUICE_TRY(touch(source));
  }
  SLUICE_TRY(hold_work_buffer(graph));

  const auto index = state_->begin({.kind = SimEvent::Kind::compute});
  std::uint64_t ordinal = 0;
  {
    std::lock_guard lock(state_->mutex);
    ordinal = ++state_->compute_calls;
    state_->settle_late();
    if (options_.max_submit_buffers > 0 && state_->buffers() > static_cast<std::size_t>(options_.max_submit_buffers))
      return fail(Code::device_oom, fmt::format("sim refuses the submit of a computation: {} buffers are there, it takes {}",
                                                state_->buffers(), options_.max_submit_buffers));
  }
  delay(SimEvent::Kind::compute, ordinal, 0);
  if (ordinal == options_.fail_compute) return fail(Code::device_failed, "sim failed to order while computing");
  std::optional<Open> open;
  open.emplace(*state_, std::move(buffers));
  SLUICE_TRY(open->status());
  SLUICE_ASSIGN(const Moment real_end, cpu_->compute(graph, not_before, cancel));
  open.reset();
  delay(SimEvent::Kind::compute, ordinal, 1);

  std::lock_guard lock(state_->mutex);
  SimEvent& logged = state_->log[index];
  if (virtual_time()) {
    logged.start = std::max(state_->compute_clock, not_before);
    const double seconds = options_.node_s * nodes + (options_.flops_per_s ? graph_flops(graph) / *options_.flops_per_s : 0);
    state_->compute_clock = logged.end = logged.start + nanoseconds(seconds);
  } else {
    logged.start = logged.end = real_end;
  }
  logged.ok = true;
  ++state_->counters.computes;
  return logged.end;
}

void SimDevice::discard(ggml_backend_buffer_t buffer, Bytes offset, Bytes size) {
  SimEvent event{.kind = SimEvent::Kind::discard, .bytes = size, .offset = offset};
  std::byte* data = nullptr;
  {
    std::lock_guard lock(state_->mutex);
    const auto found = state_->blocks.find(buffer);
    if (found == state_->blocks.end() || offset > found->second.size || size > found->second.size - offset) return;
    event.buffer = found->second.number;
    data = found->second.pages.data() + offset;
  }
  const auto index = state_->begin(event);
  if (options_.poison) {
    const Open open(*state_, {buffer});
    if (open.status()) std::memset(data, 0xFF, static_cast<std::size_t>(size));
  }
  std::lock_guard lock(state_->mutex);
  state_->log[index].ok = true;
  ++state_->counters.discards;
}

void SimDevice::synchronise() {
  std::lock_guard lock(state_->mutex);
  ++state_->waiting_calls;
  state_->settle_late();
}

bool SimDevice::lacks(const ggml_tensor* node) const {
  return options_.lacks.contains(ggml_op_name(node->op)) || options_.lacks.contains(ggml_op_desc(node));
}

bool SimDevice::takes_split_rows(const ggml_tensor* node) const {
  const auto buffer_of = [](const ggml_tensor* t) { return t->view_src ? t->view_src->buffer : t->buffer; };
  std::lock_guard lock(state_->mutex);
  for (int i = 0; i < GGML_MAX_SRC && !state_->splits.empty(); ++i) {
    const ggml_tensor* source = node->src[i];
    const auto split = source ? state_->splits.find(buffer_of(source)) : state_->splits.end();
    if (split == state_->splits.end()) continue;
    // As ggml's CUDA backend: only whole matrices, only as a product's first operand, and not without a row of its own.
    if (node->op != GGML_OP_MUL_MAT || i != 0 || source->view_src || source->ne[2] * source->ne[3] > 1) return false;
    if (split_rows(source->ne[1], split->second.shares, kRowTile)[split->second.own] == 0) return false;
  }
  return true;
}

bool SimDevice::supports(const ggml_tensor* node) const {
  return !lacks(node) && takes_split_rows(node) && cpu_->supports(node);
}

Result<Bytes> SimDevice::measure_backend(std::span<ggml_cgraph* const> graphs) {
  SLUICE_ASSIGN(const Bytes work, cpu_->measure_backend(graphs));
  return options_.backend + work;
}

Device::Rates SimDevice::rates() const {
  Rates rates;
  if (virtual_time()) {
    constexpr double free_of_cost = 1e15;
    rates.link_bytes_per_s = options_.link_bytes_per_s.value_or(free_of_cost);
    rates.link_latency_s = options_.link_latency_s;
    rates.flops_per_s = options_.flops_per_s.value_or(free_of_cost);
  }
  return rates;
}

int SimDevice::live_buffers() const {
  std::lock_guard lock(state_->mutex);
  return static_cast<int>(state_->blocks.size() + state_->parts);
}

std::vector<SimEvent> SimDevice::log() const {
  std::lock_guard lock(state_->mutex);
  return state_->log;
}

SimCounters SimDevice::counters() const {
  std::lock_guard lock(state_->mutex);
  return state_->counters;
}

Bytes SimDevice::high_water() const {
  std::lock_guard lock(state_->mutex);
  return state_->high_water;
}

void SimDevice::on_event(std::function<void(const SimEvent&)> hook) {
  std::lock_guard lock(state_->mutex);
  state_->hook = std::move(hook);
}

void SimDevice::set_report(Bytes free, Bytes total) {
  std::lock_guard lock(state_->mutex);
  state_->report = {free, total};
}

}  // namespace sluice
