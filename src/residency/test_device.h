#pragma once

#include <atomic>
#include <cstdlib>

#include "device/device.h"

namespace sluice {

/// For the store's tests: a CPU buffer type behind a device whose facts can be set, and whose host memory can run out.
/// It moves nothing and computes nothing.
class TestDevice final : public Device {
 public:
  explicit TestDevice(std::optional<Bytes> limit = std::nullopt) : ledger_(limit) {
    info_.name = "test";
    info_.alignment = 64;
  }
  DeviceInfo info_;
  std::atomic<int> host_allocations = 0;       ///< so far; threads that fetch allocate at once
  std::atomic<int> fail_host_allocation = -1;  ///< the n-th from now on (0: the next) fails
  ggml_type no_raw = GGML_TYPE_COUNT;
  bool maps = true;   ///< uses host memory in place, where its kind does
  bool pins = false;  ///< host memory is said to be pinned; for kinds other than the CPU

  const DeviceInfo& info() const override { return info_; }
  Ledger& ledger() override { return ledger_; }
  MemoryView memory() const override { return {}; }
  ggml_backend_buffer_type_t buffer_type() const override { return ggml_backend_cpu_buffer_type(); }
  Result<DeviceBuffer> allocate(Bytes size) override { return fail(Code::device_oom, "test device", size); }
  Result<std::unique_ptr<HostBuffer>> allocate_host(Bytes size) override {
    if (fail_host_allocation-- == 0) return fail(Code::device_oom, "no host memory", size);
    ++host_allocations;
    return std::make_unique<Memory>(size, pins);
  }
  Result<DeviceBuffer> map_host(std::span<const std::byte> bytes) override {
    if (!maps) return fail(Code::unsupported, "test device");
    return DeviceBuffer(ggml_backend_cpu_buffer_from_ptr(const_cast<std::byte*>(bytes.data()), bytes.size()),
                        {[](ggml_backend_buffer_t gone) { ggml_backend_buffer_free(gone); }});
  }
  Result<Moment> set(ggml_tensor*, Bytes, std::span<const std::byte>, Moment, const CancelToken&, Transfer) override {
    return fail(Code::unsupported, "test device");
  }
  Result<Moment> get(const ggml_tensor*, Bytes, std::span<std::byte>, Moment) override {
    return fail(Code::unsupported, "test device");
  }
  Result<Moment> compute(ggml_cgraph*, Moment, const CancelToken&) override { return fail(Code::unsupported, "test device"); }
  void discard(ggml_backend_buffer_t, Bytes, Bytes) override {}
  bool supports(const ggml_tensor*) const override { return true; }
  Result<Bytes> measure_backend(std::span<ggml_cgraph* const>) override { return Bytes{0}; }
  bool raw_images(ggml_type type) const override { return type != no_raw; }
  Rates rates() const override { return {}; }
  int live_buffers() const override { return 0; }
  void set_log(LogSink) override {}

 private:
  class Memory final : public HostBuffer {
   public:
    /// Filled with what no image may contain by chance.
    Memory(Bytes size, bool pinned) : bytes_(size, std::byte{0xA5}), pinned_(pinned) {}
    std::span<std::byte> bytes() override { return bytes_; }
    bool pinned() const override { return pinned_; }

   private:
    std::vector<std::byte> bytes_;
    bool pinned_;
  };
  Ledger ledger_;
};

}  // namespace sluice
