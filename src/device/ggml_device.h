#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "device/cpu_controls.h"
#include "device/device.h"

namespace sluice {

/// How a ggml device is opened.
struct GgmlOptions {
  int threads = 0;  ///< compute threads of a CPU device; 0: as many as the process may run on
  int poll =
      0;  ///< 0…100, how eagerly idle compute threads spin; 0 leaves the cores to the link thread (docs/design/010-device.md)
  std::optional<double> link_bytes_per_s, link_latency_s, flops_per_s;  ///< instead of measured rates
};

/// Any device of ggml's registry behind the Device interface. Whatever a backend throws is caught here and becomes
/// device_failed.
class GgmlDevice final : public Device {
 public:
  /// Errors: device_failed (the backend does not start).
  static Result<std::unique_ptr<GgmlDevice>> open(ggml_backend_dev_t dev, const GgmlOptions& options,
                                                  std::shared_ptr<Ledger> ledger);
  ~GgmlDevice() override;

  const DeviceInfo& info() const override { return info_; }
  Ledger& ledger() override { return *ledger_; }
  MemoryView memory() const override;
  ggml_backend_buffer_type_t buffer_type() const override { return buffer_type_; }
  Result<DeviceBuffer> allocate(Bytes size) override;
  std::optional<RowSplitOffer> row_split() const override;
  Result<DeviceBuffer> allocate_split(std::span<ggml_tensor* const> tensors, std::span<const RowShare> shares) override;
  Result<std::unique_ptr<HostBuffer>> allocate_host(Bytes size) override;
  Result<DeviceBuffer> map_host(std::span<const std::byte> bytes) override;
  Result<Moment> set(ggml_tensor* tensor, Bytes offset, std::span<const std::byte> data, Moment not_before,
                     const CancelToken& cancel, Transfer transfer = Transfer::weights) override;
  Result<Moment> get(const ggml_tensor* tensor, Bytes offset, std::span<std::byte> data, Moment not_before) override;
  Result<Moment> compute(ggml_cgraph* graph, Moment not_before, const CancelToken& cancel) override;
  void discard(ggml_backend_buffer_t, Bytes, Bytes) override {}
  bool supports(const ggml_tensor* node) const override;
  Result<Bytes> measure_backend(std::span<ggml_cgraph* const> graphs) override;
  std::optional<Bytes> backend_now() const override;
  bool raw_images(ggml_type type) const override;
  Rates rates() const override;
  void use_rates(const Rates& rates) override;
  int live_buffers() const override { return live_->load(); }
  void set_log(LogSink log) override { log_ = std::move(log); }

  /// Work buffer the CPU backend makes for this graph; 0 on other devices. Errors: unsupported.
  Result<Bytes> work_size(const ggml_cgraph* graph) const;

  /// What a device of the registry says of itself, without starting it.
  static DeviceInfo describe(ggml_backend_dev_t dev);
  /// Its memory now. `booked`: what our ledger has there.
  static MemoryView memory_of(ggml_backend_dev_t dev, Bytes booked);

 private:
  GgmlDevice() = default;
  /// Whether the CPU backend can have a larger work buffer for this graph: where it cannot, it frees the old one and keeps the
  /// pointer to it. Under compute_mutex_. Errors: device_oom.
  Status check_work_buffer(const ggml_cgraph* graph);

  /// Free memory by a report that tells of this device alone, and what our ledger had there; none where there is no such
  /// report.
  struct Reading {
    Bytes free = 0, own = 0;
  };
  std::optional<Reading> read_memory() const;
  /// What free memory fell by between two readings beyond our own bytes.
  static Bytes taken(const Reading& before, const Reading& after);
  /// Computes a graph not seen before and adds to measured_. False: there was no room. Under compute_mutex_. Errors:
  /// device_failed.
  Result<bool> warm(ggml_cgraph* graph);

  ggml_backend_dev_t dev_ = nullptr;
  DeviceInfo info_;
  GgmlOptions options_;
  std::shared_ptr<Ledger> ledger_;
  CpuControls cpu_;
  ggml_threadpool* pool_ = nullptr;
  ggml_backend_ptr backend_;
  ggml_backend_buffer_type_t buffer_type_ = nullptr;
  std::shared_ptr<std::atomic<int>> live_ = std::make_shared<std::atomic<int>>(0);
  LogSink log_;
  std::atomic<bool> warned_pageable_ = false;

  /// The token of the compute now running. Read by ggml's abort callback, which runs in the computing thread itself.
  const CancelToken* cancel_ = nullptr;
  std::atomic<Bytes> work_seen_ = 0;  ///< largest work buffer that was there to be had; written under compute_mutex_

  mutable std::mutex measured_mutex_;  ///< guards measured_ and last_; taken last
  Bytes measured_ = 0;                 ///< what the backend took when it was opened and for every graph warmed up
  std::optional<Reading> last_;        ///< when that was measured last
  std::set<std::uint64_t> warmed_;     ///< signatures of graphs; under compute_mutex_

  /// Held while the backend computes, for a caller, a probe or a measurement.
  mutable std::mutex compute_mutex_;
  /// Guards the answers below; taken before compute_mutex_, and alone once an answer is known.
  mutable std::mutex answers_mutex_;
  mutable std::map<ggml_type, bool> raw_images_;
  mutable std::optional<Rates> rates_;
};

/// Checks that [offset, offset + size) lies in `tensor` and that it has memory; ggml aborts otherwise. Errors:
/// invalid_argument.
Status check_range(const ggml_tensor* tensor, Bytes offset, Bytes size);

/// Host memory straight from the operating system: page-aligned, pageable. Errors: device_oom.
Result<std::unique_ptr<HostBuffer>> allocate_pageable(const std::string& device, Bytes size);

/// The largest piece of a copy between two looks at the cancel token.
inline constexpr Bytes kCopyPiece = 16 * MiB;

}  // namespace sluice
