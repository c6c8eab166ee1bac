#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/result.h"
#include "device/ledger.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"

namespace sluice {

enum class DeviceKind { cpu, gpu, integrated, simulated };

/// What a device said of itself when it was opened. Bytes as reported; `memory()` gives the clamped, current view.
struct DeviceInfo {
  std::string name;         ///< "cpu", "vulkan0", "sim"
  std::string description;
  std::string device_id;    ///< physical identity; equal for two backends on one card; may be empty
  DeviceKind kind = DeviceKind::cpu;
  Bytes alignment = 32;     ///< of tensors in its buffers; a power of two
  Bytes max_buffer = GiB;   ///< largest buffer that we ask for (≤ 1 GiB, ≤ the device's largest)
  bool host_memory = true;  ///< its memory is the host's own (budget = RAM budget)
  int threads = 1;          ///< compute threads, fixed for the engine's life; 0 where it means nothing
};

/// Memory as of now, after clamping hostile reports. `known` is false when total cannot be trusted (0, 2^64−1, free > total).
struct MemoryView {
  Bytes free = 0, total = 0;
  bool known = false;
};

/// A moment on the device's clock, in nanoseconds: steady time on real devices, virtual time on the simulated one.
/// Operations take the moment before which they may not start and return the moment they ended; dependencies are thereby explicit,
/// and virtual time does not depend on how threads happen to interleave.
using Moment = std::int64_t;

/// Pinned (or, where the device has no host buffer type, page-aligned pageable) host memory.
class HostBuffer {
 public:
  virtual ~HostBuffer() = default;
  virtual std::span<std::byte> bytes() = 0;
  virtual bool pinned() const = 0;
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
  /// Errors: device_oom (names device, bytes asked, bytes free), invalid_argument above max_buffer.
  virtual Result<ggml_backend_buffer_ptr> allocate(Bytes size) = 0;
  /// Host memory for staging and images, from the device's host buffer type where it has one. Errors: device_oom.
  virtual Result<std::unique_ptr<HostBuffer>> allocate_host(Bytes size) = 0;

  /// Copies host bytes into `tensor` at `offset`, in pieces of at most 16 MiB, not starting before `not_before`.
  /// Synchronous. Errors: device_failed, cancelled. Returns the moment it ended.
  virtual Result<Moment> set(ggml_tensor* tensor, Bytes offset, std::span<const std::byte> data, Moment not_before, const CancelToken& cancel) = 0;
  virtual Result<Moment> get(const ggml_tensor* tensor, Bytes offset, std::span<std::byte> data, Moment not_before) = 0;
  /// Runs a bound graph to its end. Every node was found supported before. Errors: device_failed, device_oom, cancelled.
  virtual Result<Moment> compute(ggml_cgraph* graph, Moment not_before, const CancelToken& cancel) = 0;
  /// The bytes of `buffer` in [offset, offset + size) mean nothing from now on. Real devices ignore it; the simulated one poisons them.
  virtual void discard(ggml_backend_buffer_t buffer, Bytes offset, Bytes size) = 0;

  virtual bool supports(const ggml_tensor* node) const = 0;
  /// What the backend itself will hold to run these graphs (work buffers and the like), measured without computing them where the
  /// backend allows; the graphs need no memory bound. Includes the stated margin. Errors: device_failed.
  virtual Result<Bytes> measure_backend(std::span<ggml_cgraph* const> graphs) = 0;

  /// Whether a raw image of a block with weights of this type computes the same as tensor-by-tensor upload (probed at open).
  virtual bool raw_images(ggml_type type) const = 0;

  /// Rates for the planner, cached and rounded so that plans repeat: bytes per second host → device, FLOP per second.
  struct Rates {
    double link_bytes_per_s = 10e9;
    double link_latency_s = 10e-6;
    double flops_per_s = 50e9;
  };
  virtual Rates rates() const = 0;
  /// Buffers alive now (for the test that their number does not grow with the blocks).
  virtual int live_buffers() const = 0;
};

/// Floating-point operations of a graph (multiply-adds count two); products, convolutions and attention only. Pure.
double graph_flops(const ggml_cgraph* graph);

/// Opens a device by name: "cpu", "cpu:threads=2", "vulkan0", "sim:memory=24MiB,link=200MB/s,…" (docs/simulated-device.md).
/// Errors: not_found (lists the devices there are), invalid_argument (names the option), device_failed.
Result<std::unique_ptr<Device>> open_device(const std::string& name);

}  // namespace sluice
