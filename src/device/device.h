#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/log.h"
#include "base/result.h"
#include "device/ledger.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"

namespace sluice {

enum class DeviceKind { cpu, gpu, integrated, simulated };

/// What a device said of itself when it was opened. Bytes as reported; `memory()` gives the clamped, current view.
struct DeviceInfo {
  std::string name;  ///< "cpu", "vulkan0", "sim"
  std::string description;
  std::string device_id;  ///< physical identity; equal for two backends on one card; may be empty
  DeviceKind kind = DeviceKind::cpu;
  Bytes alignment = 32;     ///< of tensors in its buffers; a power of two
  Bytes max_buffer = GiB;   ///< buffers larger than this (≤ 1 GiB, ≤ what the device prefers) are asked for only where a single
                            ///< object needs one
  bool host_memory = true;  ///< its memory is the host's own (budget = RAM budget)
  int threads = 1;          ///< compute threads, fixed for the engine's life; 0 where it means nothing
};

/// Memory as of now, after clamping hostile reports (device/memory_report.h). `known` is false when the report cannot be
/// trusted (total 0 or 2^64−1, free > total): then only an explicit budget counts.
struct MemoryView {
  Bytes free = 0, total = 0;
  bool known = false;
  std::string_view doubt = {};  ///< where it is not known: what is wrong with the report, in words; empty: there was none
};

/// A moment on the device's clock, in nanoseconds: steady time on real devices, virtual time on the simulated one.
/// Operations take the moment before which they may not start and return the moment they ended; dependencies are thereby
/// explicit, and virtual time does not depend on how threads happen to interleave.
using Moment = std::int64_t;

/// Pinned (or, where the device has no host buffer type, page-aligned pageable) host memory.
class HostBuffer {
 public:
  virtual ~HostBuffer() = default;
  virtual std::span<std::byte> bytes() = 0;
  virtual bool pinned() const = 0;
};

/// A ggml buffer that its device takes note of when it goes. Goes before its device.
struct DeviceBufferDeleter {
  std::function<void(ggml_backend_buffer_t)> free;
  void operator()(ggml_backend_buffer_t buffer) const { free(buffer); }
};
using DeviceBuffer = std::unique_ptr<ggml_backend_buffer, DeviceBufferDeleter>;

class Device;

/// That the rows of weights may lie spread over several devices while one of them computes.
struct RowSplitOffer {
  const void* family = nullptr;  ///< devices of one family can share; never read through
  int card = 0;                  ///< the order in which the family's devices get rows
  bool last = true;  ///< the family has no later card: without the last one, rows left over would lie unbooked on it
};
/// A device's part of such weights.
struct RowShare {
  Device* device = nullptr;
  float share = 0;  ///< of the rows; they need not sum to 1
};

/// Who moves bytes to a device. On the simulated device each has a clock of its own, so that virtual time does not depend on
/// which of the two threads comes first; state is small beside weights, so its share of the link may be left out.
enum class Transfer {
  weights,  ///< block images, from the link thread
  state,    ///< inputs, constants and state, from the computing thread
};

/// One ggml device with its books. All memory sluice uses on it comes from `allocate` (called by Arena alone).
/// Threads: `compute` from one thread at a time; `set`, `get`, `discard` from any, beside a running compute, on disjoint bytes.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual Ledger& ledger() = 0;
  virtual MemoryView memory() const = 0;
  virtual ggml_backend_buffer_type_t buffer_type() const = 0;

  /// One driver allocation of exactly `size` bytes; the caller holds a lease for them.
  /// Errors: device_oom (names device, bytes asked, bytes free), invalid_argument for 0 bytes.
  virtual Result<DeviceBuffer> allocate(Bytes size) = 0;
  /// Whether rows of weights may lie on other devices while this one computes with them. None: they cannot.
  virtual std::optional<RowSplitOffer> row_split() const { return std::nullopt; }
  /// Memory for weights whose rows lie spread over `shares` (this device among them, all of one family, in the order of their
  /// cards). `tensors` (2-D, contiguous, without memory) get their place in it; other tensors may refer to the same place by
  /// buffer, data and extra. A weight in it is filled whole by one `set`, and read by matrix products on this device alone.
  /// Without tensors: takes nothing, and stands for such a buffer where `supports` is asked. The caller holds leases on every
  /// device. Errors: unsupported, device_oom.
  virtual Result<DeviceBuffer> allocate_split(std::span<ggml_tensor* const> tensors, std::span<const RowShare> shares);

  /// Host memory for staging and images, from the device's host buffer type where it has one; page-aligned. Where the driver
  /// hands out an ordinary buffer instead, `pinned()` is false and the log is told once. Errors: device_oom.
  virtual Result<std::unique_ptr<HostBuffer>> allocate_host(Bytes size) = 0;

  /// Makes host memory the device's own without a copy, to be read only, where its memory is the host's and its driver can:
  /// `bytes` starts and ends on a page (the last page counts whole) and outlives the buffer. Nothing is leased. Errors:
  /// unsupported, device_failed.
  virtual Result<DeviceBuffer> map_host(std::span<const std::byte> bytes) {
    (void)bytes;
    return fail(Code::unsupported, info().name + " does not use the host's memory in place");
  }

  /// Copies host bytes into `tensor` at `offset`, in pieces of at most 16 MiB, not starting before `not_before`.
  /// Synchronous; the cancel token is looked at before each piece. Errors: device_failed, cancelled, invalid_argument (beyond
  /// the tensor, or no memory). Returns the moment it ended.
  virtual Result<Moment> set(ggml_tensor* tensor, Bytes offset, std::span<const std::byte> data, Moment not_before,
                             const CancelToken& cancel, Transfer transfer = Transfer::weights) = 0;
  /// Copies bytes of `tensor` from `offset` on to the host. Synchronous. Errors: device_failed.
  virtual Result<Moment> get(const ggml_tensor* tensor, Bytes offset, std::span<std::byte> data, Moment not_before) = 0;
  /// Runs a bound graph to its end. Every node was found supported before. Errors: device_failed, device_oom, cancelled.
  virtual Result<Moment> compute(ggml_cgraph* graph, Moment not_before, const CancelToken& cancel) = 0;
  /// The bytes of `buffer` in [offset, offset + size) mean nothing from now on. Real devices ignore it; the simulated one
  /// poisons them.
  virtual void discard(ggml_backend_buffer_t buffer, Bytes offset, Bytes size) = 0;

  /// Waits until the driver has done all that it was handed; some give freed memory back only then. Not beside a compute.
  virtual void synchronise() {}

  virtual bool supports(const ggml_tensor* node) const = 0;
  /// What the backend itself will hold to run any of these graphs, one after another (work buffers and the like); the graphs
  /// need no memory bound and have none afterwards. On CPU devices it is exact, repeatable and without margin: the work buffer
  /// that ggml plans for the graphs at the device's thread count; nothing is computed. Elsewhere graphs not seen before are
  /// computed once, in memory leased for that while, and what free memory falls by meanwhile is what the backend took; that and
  /// kMeasuredMargin is the answer. Where the driver reports the host's memory as its own, or nothing to believe, or there is
  /// no room, it is kBackendMargin instead. What other programs take within that moment counts too. Errors: device_failed.
  virtual Result<Bytes> measure_backend(std::span<ggml_cgraph* const> graphs) = 0;
  /// What the backend itself seems to hold now: exact on CPU devices; elsewhere what was measured, and what the report of free
  /// memory has fallen by since without our doing, other programs' included. None where that is not known. Threads: any.
  virtual std::optional<Bytes> backend_now() const { return std::nullopt; }

  /// Whether a raw image of a block with weights of this type computes bit for bit the same as
  /// tensor-by-tensor upload, also after refills (device/probe.h).
  /// Threads: any. Cost: at most milliseconds, at the first call for a type; later calls return the stored answer.
  virtual bool raw_images(ggml_type type) const = 0;

  /// Rates for the planner: bytes per second host → device, FLOP per second. Given in the device's name, or measured once at
  /// the first call (at most some 50 ms) and rounded to two significant figures, so that plans repeat. Measuring leases up to 5
  /// MiB for that while; where they are not to be had, the defaults below are returned and the next call tries again.
  struct Rates {
    double link_bytes_per_s = 10e9;
    double link_latency_s = 10e-6;
    double flops_per_s = 50e9;
  };
  virtual Rates rates() const = 0;
  /// Takes these for rates, measured at an earlier time, where the device's name gives none. Before the first call of `rates`.
  virtual void use_rates(const Rates&) {}
  /// Buffers alive now (for the test that their number does not grow with the blocks).
  virtual int live_buffers() const = 0;
  /// Where warnings go from now on. Not while another thread uses the device.
  virtual void set_log(LogSink log) = 0;
};

/// What `measure_backend` states for devices whose own use cannot be asked for: contexts, pools and pipelines of GPU backends.
inline constexpr Bytes kBackendMargin = 256 * MiB;
/// What it adds to what it measured: drivers take memory in pieces of 2 to 32 MiB and report it late, and make command buffers
/// and descriptors as a sweep goes on.
inline constexpr Bytes kMeasuredMargin = 64 * MiB;

/// Opens a device by name: "cpu", "cpu:threads=2", "vulkan0", "sim:memory=24MiB,link=200MB/s,…" (docs/simulated-device.md).
/// Options of ggml devices: threads=N (CPU), link=RATE, latency=TIME, compute=RATE (instead of measured ones), poll=0…100 (CPU:
/// how eagerly idle compute threads spin). Devices with one device_id share one ledger, as do all that live in the host's
/// memory. Errors: not_found (lists the devices there are), invalid_argument (names the option), device_failed.
Result<std::unique_ptr<Device>> open_device(const std::string& name);

/// A device that `open_device` can open.
struct DeviceListing {
  DeviceInfo info;
  MemoryView memory;
};
/// Every ggml device there is (not the simulated one, which is always there). Backends that are plugins are loaded at the first
/// call in the process. Accelerators that only help the CPU are left out.
std::vector<DeviceListing> list_devices();

/// The device to run on where nobody says: a card of its own before an integrated one before the CPU, of several the one with
/// the most memory.
std::string default_device();

}  // namespace sluice
