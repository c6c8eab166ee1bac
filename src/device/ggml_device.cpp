#include "device/ggml_device.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <exception>
#include <new>
#include <string_view>
#include <thread>

#include "base/host_memory.h"
#include "base/pages.h"
#include "device/memory_report.h"
#include "device/probe.h"
#include "device/rate_probe.h"
#include "device/warm_up.h"

namespace sluice {
namespace {

constexpr Bytes kPage = 4096;  // what graphics drivers count host memory in

Moment now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Runs `body`; what a backend throws (Vulkan's C++ bindings do) becomes an error.
template <typename Body>
auto guarded(const std::string& device, const char* doing, Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception& thrown) {
    return fail(Code::device_failed, device + " failed while " + doing + ": " + thrown.what());
  } catch (...) {
    return fail(Code::device_failed, device + " failed while " + doing);
  }
}

class PageableBuffer final : public HostBuffer {
 public:
  explicit PageableBuffer(Pages pages) : pages_(std::move(pages)) {}
  std::span<std::byte> bytes() override { return pages_.bytes(); }
  bool pinned() const override { return false; }

 private:
  Pages pages_;
};

class PinnedBuffer final : public HostBuffer {
 public:
  PinnedBuffer(ggml_backend_buffer_ptr buffer, Bytes size) : buffer_(std::move(buffer)), size_(size) {}
  std::span<std::byte> bytes() override {
    return {static_cast<std::byte*>(ggml_backend_buffer_get_base(buffer_.get())), static_cast<std::size_t>(size_)};
  }
  bool pinned() const override { return true; }

 private:
  ggml_backend_buffer_ptr buffer_;
  Bytes size_;
};

DeviceKind kind_of(ggml_backend_dev_t dev) {
  switch (ggml_backend_dev_type(dev)) {
    case GGML_BACKEND_DEVICE_TYPE_CPU: return DeviceKind::cpu;
    case GGML_BACKEND_DEVICE_TYPE_IGPU: return DeviceKind::integrated;
    default: return DeviceKind::gpu;
  }
}

/// Whether a device's memory is the host's: the CPU, graphics within it, and software drivers, which call themselves graphics
/// cards and report the machine's memory, to the byte, as theirs.
bool lives_in_host(ggml_backend_dev_t dev) {
  if (kind_of(dev) != DeviceKind::gpu) return true;
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (!cpu) return false;
  std::size_t free = 0, total = 0, host = 0;
  try {
    ggml_backend_dev_memory(dev, &free, &total);
    ggml_backend_dev_memory(cpu, &free, &host);
  } catch (...) {
    return false;
  }
  return total > 0 && total == host;
}

/// More cards than any backend has. ggml-cuda reads 16 shares, however many cards there are.
constexpr std::size_t kMostCards = 64;

/// What makes buffers for weights whose rows are spread over the backend's cards; nullptr: it does not.
ggml_backend_split_buffer_type_t split_buffer_type_of(ggml_backend_dev_t dev) {
  ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(dev);
  // SYCL's function of this name has another signature (ggml-sycl.h): to call it would be undefined.
  if (!reg || std::string_view(ggml_backend_reg_name(reg)) == "SYCL") return nullptr;
  return reinterpret_cast<ggml_backend_split_buffer_type_t>(
      ggml_backend_reg_get_proc_address(reg, "ggml_backend_split_buffer_type"));
}

int card_of(ggml_backend_dev_t dev) {
  ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(dev);
  for (std::size_t i = 0; i < ggml_backend_reg_dev_count(reg); ++i)
    if (ggml_backend_reg_dev_get(reg, i) == dev) return static_cast<int>(i);
  return -1;
}

/// As many as the process may run on.
int default_threads() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, GGML_MAX_N_THREADS); }

}  // namespace

Status check_range(const ggml_tensor* tensor, Bytes offset, Bytes size) {
  const Bytes bytes = ggml_nbytes(tensor);
  if (offset > bytes || size > bytes - offset)
    return fail(Code::invalid_argument, "copy beyond the end of tensor '" + std::string(tensor->name) + "'", offset + size,
                bytes);
  const ggml_tensor* owner = tensor->view_src ? tensor->view_src : tensor;
  if (!owner->buffer || !tensor->data)
    return fail(Code::invalid_argument, "tensor '" + std::string(tensor->name) + "' has no memory to copy to or from");
  return {};
}

Result<std::unique_ptr<HostBuffer>> allocate_pageable(const std::string& device, Bytes size) {
  auto pages = Pages::map(size);
  if (!pages)
    return fail(Code::device_oom, "no host memory for copies to " + device + ": " + pages.error().message, size,
                host_memory().free);
  return std::make_unique<PageableBuffer>(std::move(*pages));
}

DeviceInfo GgmlDevice::describe(ggml_backend_dev_t dev) {
  ggml_backend_dev_props props{};
  ggml_backend_dev_get_props(dev, &props);
  DeviceInfo info;
  info.name = ggml_backend_dev_name(dev);
  std::ranges::transform(info.name, info.name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  info.description = ggml_backend_dev_description(dev);
  if (props.device_id) info.device_id = props.device_id;
  info.kind = kind_of(dev);
  info.host_memory = lives_in_host(dev);
  info.threads = info.kind == DeviceKind::cpu ? default_threads() : 0;
  if (auto type = ggml_backend_dev_buffer_type(dev)) {
    info.alignment = std::max<Bytes>(ggml_backend_buft_get_alignment(type), 1);
    info.max_buffer = std::min<Bytes>(ggml_backend_buft_get_max_size(type), GiB);
  }
  return info;
}

MemoryView GgmlDevice::memory_of(ggml_backend_dev_t dev, Bytes booked) {
  if (kind_of(dev) != DeviceKind::integrated && lives_in_host(dev)) {
    // The CPU backend reports free = total on Linux, and software drivers know nothing of control groups.
    const HostMemory host = host_memory();
    if (host.known) return believe_memory(host.free, host.total, booked);
  }
  std::size_t free = 0, total = 0;
  try {
    ggml_backend_dev_memory(dev, &free, &total);
  } catch (...) {
    return {};
  }
  return believe_memory(free, total, booked);
}

Result<std::unique_ptr<GgmlDevice>> GgmlDevice::open(ggml_backend_dev_t dev, const GgmlOptions& options,
                                                     std::shared_ptr<Ledger> ledger) {
  std::unique_ptr<GgmlDevice> device{new GgmlDevice};
  device->dev_ = dev;
  device->options_ = options;
  device->ledger_ = std::move(ledger);
  const auto start = [&]() -> Status {
    device->info_ = describe(dev);
    const auto before = device->read_memory();
    device->backend_.reset(ggml_backend_dev_init(dev, nullptr));
    if (!device->backend_) return fail(Code::device_failed, device->info_.name + " does not start");
    device->buffer_type_ = ggml_backend_dev_buffer_type(dev);
    if (!device->buffer_type_) return fail(Code::device_failed, device->info_.name + " has no memory of its own");
    device->last_ = device->read_memory();
    if (before && device->last_) device->measured_ = taken(*before, *device->last_);
    return {};
  };
  SLUICE_TRY(guarded(ggml_backend_dev_name(dev), "starting", start));

  if (device->info_.kind == DeviceKind::cpu) {
    auto& cpu = device->cpu_ = CpuControls::of(ggml_backend_dev_backend_reg(dev));
    int& threads = device->info_.threads;
    if (options.threads > 0) threads = std::min(options.threads, GGML_MAX_N_THREADS);
    if (cpu.set_n_threads) cpu.set_n_threads(device->backend_.get(), threads);
    if (cpu.threadpool_new && cpu.threadpool_free && cpu.set_threadpool) {
      auto params = ggml_threadpool_params_default(threads);
      params.poll = static_cast<std::uint32_t>(std::clamp(options.poll, 0, 100));
      device->pool_ = cpu.threadpool_new(&params);
      if (!device->pool_)
        return fail(Code::device_failed, device->info_.name + " could not start " + std::to_string(threads) + " threads");
      cpu.set_threadpool(device->backend_.get(), device->pool_);
    }
    if (cpu.set_abort_callback) {
      const auto aborted = [](void* self) {
        const CancelToken* token = static_cast<GgmlDevice*>(self)->cancel_;
        return token && token->cancelled();
      };
      cpu.set_abort_callback(device->backend_.get(), aborted, device.get());
    }
  }
  return device;
}

GgmlDevice::~GgmlDevice() {
  // The backend uses the pool until it goes.
  backend_.reset();
  if (pool_) cpu_.threadpool_free(pool_);
}

MemoryView GgmlDevice::memory() const {
  const auto report = ledger_->report();
  return memory_of(dev_, report.total + report.backend);
}

Result<DeviceBuffer> GgmlDevice::allocate(Bytes size) {
  // What is larger than max_buffer is asked for all the same: for some drivers it is only a preference.
  if (size == 0) return fail(Code::invalid_argument, "a buffer of 0 bytes cannot be had on " + info_.name);
  return guarded(info_.name, "allocating", [&]() -> Result<DeviceBuffer> {
    // Host memory comes as pages of its own: out of the heap, buffers of changing sizes would leave holes that no other fits,
    // and the process would grow from request to request.
    std::shared_ptr<Pages> pages;
    ggml_backend_buffer_t buffer = nullptr;
    if (info_.kind == DeviceKind::cpu) {
      if (auto mapped = Pages::map(size)) {
        pages = std::make_shared<Pages>(*std::move(mapped));
        buffer = ggml_backend_cpu_buffer_from_ptr(pages->data(), static_cast<std::size_t>(size));
      }
    } else {
      buffer = ggml_backend_buft_alloc_buffer(buffer_type_, static_cast<std::size_t>(size));
    }
    if (!buffer) {
      const Bytes free = memory().free;
      return fail(Code::device_oom,
                  info_.name + " refuses a buffer of " + format_bytes(size) + " with " + format_bytes(free) +
                      " reported free: lower the device budget",
                  size, free);
    }
    live_->fetch_add(1);
    return DeviceBuffer{buffer, DeviceBufferDeleter{[live = live_, pages](ggml_backend_buffer_t gone) {
                          ggml_backend_buffer_free(gone);
                          live->fetch_sub(1);
                        }}};
  });
}

std::optional<RowSplitOffer> GgmlDevice::row_split() const {
  const int card = card_of(dev_);
  if (!split_buffer_type_of(dev_) || card < 0 || card >= static_cast<int>(kMostCards)) return std::nullopt;
  ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(dev_);
  return RowSplitOffer{reg, card, card + 1 == static_cast<int>(ggml_backend_reg_dev_count(reg))};
}

Result<DeviceBuffer> GgmlDevice::allocate_split(std::span<ggml_tensor* const> tensors, std::span<const RowShare> shares) {
  const auto offer = row_split();
  std::array<float, kMostCards> split{};
  for (const RowShare& share : shares) {
    const auto other = share.device->row_split();
    if (!offer || !other || other->family != offer->family)
      return fail(Code::unsupported, info_.name + " cannot share the rows of weights with " + share.device->info().name);
    split[static_cast<std::size_t>(other->card)] = share.share;
  }
  if (!offer) return Device::allocate_split(tensors, shares);
  return guarded(info_.name, "allocating", [&]() -> Result<DeviceBuffer> {
    ggml_backend_buffer_type_t type = split_buffer_type_of(dev_)(offer->card, split.data());
    if (!type || !ggml_backend_dev_supports_buft(dev_, type))
      return fail(Code::unsupported, info_.name + " does not read weights whose rows are spread");
    std::vector<Bytes> offsets;
    Bytes size = 0;
    for (const ggml_tensor* tensor : tensors) {
      offsets.push_back(size);
      size += align_up(ggml_backend_buft_get_alloc_size(type, tensor), ggml_backend_buft_get_alignment(type));
    }
    ggml_backend_buffer_ptr buffer{ggml_backend_buft_alloc_buffer(type, static_cast<std::size_t>(size))};
    if (!buffer)
      return fail(Code::device_oom, info_.name + " refuses " + format_bytes(size) + " for weights whose rows are spread", size,
                  memory().free);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      auto* at = static_cast<std::byte*>(ggml_backend_buffer_get_base(buffer.get())) + static_cast<std::size_t>(offsets[i]);
      if (ggml_backend_tensor_alloc(buffer.get(), tensors[i], at) != GGML_STATUS_SUCCESS)
        return fail(Code::device_oom, info_.name + " has no memory for a weight whose rows are spread", ggml_nbytes(tensors[i]),
                    memory().free);
    }
    const int counted = tensors.empty() ? 0 : 1;
    live_->fetch_add(counted);
    return DeviceBuffer{buffer.release(), DeviceBufferDeleter{[live = live_, counted](ggml_backend_buffer_t gone) {
                          ggml_backend_buffer_free(gone);
                          live->fetch_sub(counted);
                        }}};
  });
}

Result<std::unique_ptr<HostBuffer>> GgmlDevice::allocate_host(Bytes size) {
  ggml_backend_buffer_type_t host_type = ggml_backend_dev_host_buffer_type(dev_);
  // ggml's CPU device may name its own buffer type here, which is pageable.
  if (host_type && info_.kind != DeviceKind::cpu && size > 0) {
    auto pinned = guarded(info_.name, "pinning host memory", [&]() -> Result<std::unique_ptr<HostBuffer>> {
      ggml_backend_buffer_ptr buffer{ggml_backend_buft_alloc_buffer(host_type, static_cast<std::size_t>(size))};
      // Where pinning fails, an ordinary buffer comes back without a word.
      if (!buffer || ggml_backend_buffer_get_type(buffer.get()) != host_type) return nullptr;
      return std::make_unique<PinnedBuffer>(std::move(buffer), size);
    });
    if (pinned && *pinned) return pinned;
    if (!warned_pageable_.exchange(true))
      log_(LogLevel::warning, "{}: {} of host memory could not be pinned; copies from ordinary memory are slower", info_.name,
           format_bytes(size));
  }
  return allocate_pageable(info_.name, size);
}

Result<DeviceBuffer> GgmlDevice::map_host(std::span<const std::byte> bytes) {
  ggml_backend_dev_props props{};
  ggml_backend_dev_get_props(dev_, &props);
  if (!info_.host_memory || !props.caps.buffer_from_host_ptr)
    return fail(Code::unsupported, info_.name + " does not use the host's memory in place");
  return guarded(info_.name, "mapping host memory", [&]() -> Result<DeviceBuffer> {
    // ggml's interface has no const buffers; a write through this one would fault, as it should. Graphics drivers take whole
    // pages.
    auto* data = const_cast<std::byte*>(bytes.data());
    const std::size_t size = info_.kind == DeviceKind::cpu ? bytes.size() : align_up(bytes.size(), kPage);
    ggml_backend_buffer_t buffer = info_.kind == DeviceKind::cpu
                                       ? ggml_backend_cpu_buffer_from_ptr(data, size)
                                       : ggml_backend_dev_buffer_from_host_ptr(dev_, data, size, size);
    if (!buffer) return fail(Code::unsupported, info_.name + " cannot use this memory of the host in place");
    return DeviceBuffer{buffer, DeviceBufferDeleter{[](ggml_backend_buffer_t gone) { ggml_backend_buffer_free(gone); }}};
  });
}

Result<Moment> GgmlDevice::set(ggml_tensor* tensor, Bytes offset, std::span<const std::byte> data, Moment,
                               const CancelToken& cancel, Transfer) {
  SLUICE_TRY(check_range(tensor, offset, data.size()));
  // Weights whose rows are spread are taken whole or not at all (ggml asserts it). Nothing else is in a buffer of another type.
  ggml_backend_buffer_t buffer = tensor->view_src ? tensor->view_src->buffer : tensor->buffer;
  const bool whole = info_.kind != DeviceKind::cpu && ggml_backend_buffer_get_type(buffer) != buffer_type_;
  const Bytes most = whole ? std::max<Bytes>(data.size(), 1) : kCopyPiece;
  return guarded(info_.name, "copying to it", [&]() -> Result<Moment> {
    for (Bytes done = 0; done < data.size();) {
      if (cancel.cancelled()) return fail(Code::cancelled, "cancelled while copying to " + info_.name);
      const Bytes piece = std::min<Bytes>(most, data.size() - done);
      ggml_backend_tensor_set(tensor, data.data() + done, static_cast<std::size_t>(offset + done),
                              static_cast<std::size_t>(piece));
      done += piece;
    }
    return now();
  });
}

Result<Moment> GgmlDevice::get(const ggml_tensor* tensor, Bytes offset, std::span<std::byte> data, Moment) {
  SLUICE_TRY(check_range(tensor, offset, data.size()));
  return guarded(info_.name, "copying from it", [&]() -> Result<Moment> {
    ggml_backend_tensor_get(tensor, data.data(), static_cast<std::size_t>(offset), data.size());
    return now();
  });
}

Result<Moment> GgmlDevice::compute(ggml_cgraph* graph, Moment, const CancelToken& cancel) {
  std::lock_guard lock(compute_mutex_);
  if (cancel.cancelled()) return fail(Code::cancelled, "cancelled before computing on " + info_.name);
  SLUICE_TRY(check_work_buffer(graph));
  cancel_ = &cancel;
  auto ended = guarded(info_.name, "computing", [&]() -> Result<Moment> {
    switch (ggml_backend_graph_compute(backend_.get(), graph)) {
      case GGML_STATUS_SUCCESS: return now();
      case GGML_STATUS_ABORTED: return fail(Code::cancelled, "cancelled while computing on " + info_.name);
      case GGML_STATUS_ALLOC_FAILED:
        return fail(Code::device_oom, info_.name + " ran out of memory of its own while computing: lower the device budget");
      default: return fail(Code::device_failed, info_.name + " reported a failed computation");
    }
  });
  cancel_ = nullptr;
  return ended;
}

bool GgmlDevice::supports(const ggml_tensor* node) const {
  try {
    return ggml_backend_dev_supports_op(dev_, node);
  } catch (...) {
    return false;
  }
}

Result<Bytes> GgmlDevice::work_size(const ggml_cgraph* graph) const {
  if (info_.kind != DeviceKind::cpu) return Bytes{0};
  return cpu_.work_size(graph, info_.threads);
}

Status GgmlDevice::check_work_buffer(const ggml_cgraph* graph) {
  const auto size = work_size(graph);
  if (!size || *size <= work_seen_) return {};
  const std::unique_ptr<std::byte[]> room(new (std::nothrow) std::byte[static_cast<std::size_t>(*size)]);
  if (!room)
    return fail(Code::device_oom, info_.name + " has no " + format_bytes(*size) + " for the backend's work buffer", *size);
  work_seen_ = *size;
  return {};
}

std::optional<GgmlDevice::Reading> GgmlDevice::read_memory() const {
  // Where memory is the host's, its report tells of everything that runs there.
  if (info_.host_memory) return std::nullopt;
  const Bytes own = ledger_->report().total;
  const MemoryView view = memory_of(dev_, own);
  if (!view.known) return std::nullopt;
  return Reading{view.free, own};
}

Bytes GgmlDevice::taken(const Reading& before, const Reading& after) {
  const Bytes had = before.free + before.own, has = after.free + after.own;
  return had - std::min(had, has);
}

Result<bool> GgmlDevice::warm(ggml_cgraph* graph) {
  const std::uint64_t signature = graph_signature(graph);
  if (warmed_.contains(signature)) return true;
  const auto before = read_memory();
  if (!before) return false;
  {
    const auto room = ledger_->reserve(Use::workspace, warm_up_bytes(buffer_type_, graph));
    if (!room) return false;
    auto done = guarded(info_.name, "warming up", [&] { return warm_up(backend_.get(), buffer_type_, graph); });
    if (!done && done.error().code == Code::device_oom) return false;
    if (!done) return fail(std::move(done).error());
  }
  warmed_.insert(signature);
  const auto after = read_memory();
  std::lock_guard lock(measured_mutex_);
  if (after) measured_ += taken(*before, *after);
  if (after) last_ = after;
  return true;
}

Result<Bytes> GgmlDevice::measure_backend(std::span<ggml_cgraph* const> graphs) {
  if (info_.kind != DeviceKind::cpu) {
    bool all = true;
    std::lock_guard lock(compute_mutex_);
    for (ggml_cgraph* graph : graphs) {
      if (!all) break;
      SLUICE_ASSIGN(all, warm(graph));
    }
    std::lock_guard measured_lock(measured_mutex_);
    return all ? measured_ + kMeasuredMargin : std::max(kBackendMargin, measured_ + kMeasuredMargin);
  }
  // The backend keeps one work buffer, as large as the largest asked for; the old one goes before a larger one comes.
  Bytes most = 0;
  for (ggml_cgraph* graph : graphs) {
    SLUICE_ASSIGN(const Bytes size, work_size(graph));
    most = std::max(most, size);
  }
  return most;
}

std::optional<Bytes> GgmlDevice::backend_now() const {
  if (info_.kind == DeviceKind::cpu) return work_seen_.load();
  const auto now = read_memory();
  std::lock_guard lock(measured_mutex_);
  if (!now || !last_) return std::nullopt;
  return measured_ + taken(*last_, *now);
}

bool GgmlDevice::raw_images(ggml_type type) const {
  std::lock_guard answers_lock(answers_mutex_);
  if (const auto known = raw_images_.find(type); known != raw_images_.end()) return known->second;
  const auto lease = ledger_->reserve(Use::arena, kProbeBytes);
  if (!lease) return false;  // not stored: there may be room next time
  std::lock_guard lock(compute_mutex_);
  const auto same = guarded(info_.name, "being probed", [&] { return probe_raw_images(backend_.get(), buffer_type_, type); });
  return raw_images_[type] = same && *same;
}

void GgmlDevice::use_rates(const Rates& rates) {
  if (!options_.link_bytes_per_s) options_.link_bytes_per_s = rates.link_bytes_per_s;
  if (!options_.link_latency_s) options_.link_latency_s = rates.link_latency_s;
  if (!options_.flops_per_s) options_.flops_per_s = rates.flops_per_s;
}

Device::Rates GgmlDevice::rates() const {
  std::lock_guard answers_lock(answers_mutex_);
  if (!rates_) {
    Rates rates;
    if (!options_.link_bytes_per_s || !options_.link_latency_s || !options_.flops_per_s) {
      const RateProbeSize size = info_.kind == DeviceKind::cpu ? kCpuRateProbe : kGpuRateProbe;
      const auto lease = ledger_->reserve(Use::arena, size.bytes());
      if (!lease) return rates;
      std::lock_guard lock(compute_mutex_);
      const auto measured =
          guarded(info_.name, "being measured", [&] { return probe_rates(backend_.get(), buffer_type_, size); });
      if (measured) rates = *measured;
    }
    rates.link_bytes_per_s = options_.link_bytes_per_s.value_or(rates.link_bytes_per_s);
    rates.link_latency_s = options_.link_latency_s.value_or(rates.link_latency_s);
    rates.flops_per_s = options_.flops_per_s.value_or(rates.flops_per_s);
    rates_ = rates;
  }
  return *rates_;
}

}  // namespace sluice
