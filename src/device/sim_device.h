#pragma once

#include <map>
#include <mutex>

#include "device/ggml_device.h"
#include "device/sim_options.h"

namespace sluice {

/// One thing that happened on a simulated device.
struct SimEvent {
  enum class Kind {
    alloc,    ///< bytes = size of the buffer
    free,     ///< bytes = size of the buffer
    set,      ///< host → device
    get,      ///< device → host
    compute,  ///< a graph; bytes = 0
    discard,  ///< bytes that mean nothing any more
    backend,  ///< the backend's own memory became `bytes` in all
  };
  std::uint64_t index = 0;  ///< its place in the log
  Kind kind = Kind::alloc;
  bool ok = false;  ///< false: refused, failed, cancelled, or still running
  Bytes bytes = 0;
  std::uint32_t buffer = 0;  ///< number of the buffer, counted from 1 in the order of allocation; 0: none
  Bytes offset = 0;          ///< from the buffer's start
  Transfer transfer = Transfer::weights;
  Moment start = 0, end = 0;  ///< virtual or real time; 0 for what takes none
};

/// What a simulated device counted. Failed operations are not in it.
struct SimCounters {
  std::uint64_t allocs = 0, frees = 0, sets = 0, gets = 0, computes = 0, discards = 0;
  Bytes weight_bytes_set = 0, state_bytes_set = 0, bytes_got = 0;
};

/// A device with a capacity, rates and faults to order, computing with ggml's CPU backend. Its memory is its own and cannot be
/// touched outside set, get and compute (a host dereference faults); its accounts and its log are its own too, so that they can
/// prove the ledger. Virtual time: each kind of operation (weights in, state in, out, compute) has a clock; an operation starts
/// at the later of its clock and `not_before` and ends when the rates say. So the moments depend on the order of calls of one
/// kind, never on how threads interleave. Buffers that are freed late count as there for the driver's limits and its report,
/// not for live_buffers and high_water. Threads: as Device; log, counters and high_water from any.
class SimDevice final : public Device {
 public:
  /// Errors: invalid_argument (names the option), device_failed (no CPU backend).
  static Result<std::unique_ptr<SimDevice>> open(const SimOptions& options);

  const DeviceInfo& info() const override { return info_; }
  Ledger& ledger() override { return ledger_; }
  MemoryView memory() const override;
  ggml_backend_buffer_type_t buffer_type() const override;
  Result<DeviceBuffer> allocate(Bytes size) override;
  std::optional<RowSplitOffer> row_split() const override;
  /// Each device's part is on its own accounts; the bytes themselves lie where they are computed with.
  Result<DeviceBuffer> allocate_split(std::span<ggml_tensor* const> tensors, std::span<const RowShare> shares) override;
  Result<std::unique_ptr<HostBuffer>> allocate_host(Bytes size) override;
  Result<Moment> set(ggml_tensor* tensor, Bytes offset, std::span<const std::byte> data, Moment not_before,
                     const CancelToken& cancel, Transfer transfer = Transfer::weights) override;
  Result<Moment> get(const ggml_tensor* tensor, Bytes offset, std::span<std::byte> data, Moment not_before) override;
  Result<Moment> compute(ggml_cgraph* graph, Moment not_before, const CancelToken& cancel) override;
  void discard(ggml_backend_buffer_t buffer, Bytes offset, Bytes size) override;
  void synchronise() override;
  bool supports(const ggml_tensor* node) const override;
  Result<Bytes> measure_backend(std::span<ggml_cgraph* const> graphs) override;
  bool raw_images(ggml_type type) const override { return cpu_->raw_images(type); }
  Rates rates() const override;
  int live_buffers() const override;
  void set_log(LogSink log) override;

  /// Everything that happened since the device was opened, in order of its start. A copy.
  std::vector<SimEvent> log() const;
  SimCounters counters() const;
  /// Most bytes that buffers and the backend held at once, by the device's own accounts.
  Bytes high_water() const;
  /// Called before each operation (and at each other event) with its event, without locks, in the thread that does it: to
  /// cancel at the n-th event, for instance. Not while another thread uses the device.
  void on_event(std::function<void(const SimEvent&)> hook);
  /// What the device reports as free and total from now on, whatever is true.
  void set_report(Bytes free, Bytes total);

 private:
  struct State;
  struct Split;
  class Open;
  SimDevice() = default;
  bool virtual_time() const { return options_.link_bytes_per_s || options_.flops_per_s; }
  void delay(SimEvent::Kind kind, std::uint64_t ordinal, int side) const;
  Status hold_work_buffer(const ggml_cgraph* graph);
  bool lacks(const ggml_tensor* node) const;
  bool takes_split_rows(const ggml_tensor* node) const;
  Status book_part(Bytes size);
  Result<ggml_backend_buffer_t> place_split(Bytes whole, const Split& split);
  // With the lock held: an allocation's refusals, its pages, its entry in the accounts.
  tl::unexpected<Error> refusal(Bytes size, std::string_view why) const;
  Status ask_for(Bytes size);
  Result<ggml_backend_buffer_t> map_buffer(Bytes size);
  void count_buffer(Bytes size, std::uint64_t event);

  SimOptions options_;
  LogSink log_;
  DeviceInfo info_;
  Ledger ledger_;
  int card_ = 0;  // by when it was opened
  std::unique_ptr<GgmlDevice> cpu_;
  std::shared_ptr<State> state_;  // shared with the buffers' deleters
};

}  // namespace sluice
