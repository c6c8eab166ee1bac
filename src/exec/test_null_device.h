#pragma once

#include <cstdlib>

#include "base/pages.h"
#include "device/device.h"

namespace sluice::test {

/// A device of any size that keeps books and allocates nothing: for plans at true sizes. It moves nothing and computes nothing.
class NullDevice : public Device {
 public:
  NullDevice(Bytes alignment, Bytes max_buffer) {
    info_.name = "null";
    info_.alignment = alignment;
    info_.max_buffer = max_buffer;
    info_.host_memory = false;
    info_.kind = DeviceKind::gpu;
  }
  /// Bytes of the buffers alive now, and the most there were.
  Bytes allocated() const { return allocated_; }
  Bytes high_water() const { return high_water_; }

  const DeviceInfo& info() const override { return info_; }
  Ledger& ledger() override { return ledger_; }
  MemoryView memory() const override { return {}; }
  ggml_backend_buffer_type_t buffer_type() const override { return ggml_backend_cpu_buffer_type(); }
  Result<DeviceBuffer> allocate(Bytes size) override {
    if (size == 0 || size > info_.max_buffer) return fail(Code::invalid_argument, "null device: no such buffer", size);
    // Addresses that are never touched.
    SLUICE_ASSIGN(auto mapped, Pages::map(size));
    auto pages = std::make_shared<Pages>(std::move(mapped));
    ggml_backend_buffer_t handle = ggml_backend_cpu_buffer_from_ptr(pages->data(), static_cast<std::size_t>(size));
    allocated_ += size;
    high_water_ = std::max(high_water_, allocated_);
    ++buffers_;
    return DeviceBuffer(handle, {[this, size, pages](ggml_backend_buffer_t buffer) {
                          allocated_ -= size;
                          --buffers_;
                          ggml_backend_buffer_free(buffer);
                        }});
  }
  Result<std::unique_ptr<HostBuffer>> allocate_host(Bytes size) override { return fail(Code::device_oom, "null device", size); }
  Result<Moment> set(ggml_tensor*, Bytes, std::span<const std::byte> data, Moment, const CancelToken&, Transfer) override {
    carried_ += data.size();
    return Moment{0};
  }
  Result<Moment> get(const ggml_tensor*, Bytes, std::span<std::byte>, Moment) override { return Moment{0}; }
  /// Bytes that were carried from one place to another.
  Bytes carried() const { return carried_; }
  Result<Moment> compute(ggml_cgraph*, Moment, const CancelToken&) override { return fail(Code::unsupported, "null device"); }
  void discard(ggml_backend_buffer_t, Bytes, Bytes) override {}
  bool supports(const ggml_tensor*) const override { return true; }
  Result<Bytes> measure_backend(std::span<ggml_cgraph* const>) override { return Bytes{0}; }
  bool raw_images(ggml_type) const override { return true; }
  Rates rates() const override { return {}; }
  int live_buffers() const override { return buffers_; }
  void set_log(LogSink) override {}

 private:
  DeviceInfo info_;
  Ledger ledger_;
  Bytes allocated_ = 0, high_water_ = 0, carried_ = 0;
  int buffers_ = 0;
};

}  // namespace sluice::test
