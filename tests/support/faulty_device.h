#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "device/sim_device.h"
#include "support/two_block_model.h"

namespace sluice::test {

/// What is to go wrong from now on.
struct FaultSwitches {
  Countdown alloc, host, copy, compute;
  Countdown cancel;            ///< the n-th operation of any device sets the token
  std::atomic<int> allocs{0};  ///< buffers asked for so far
  std::atomic<int> struck{0};  ///< how often something was made to fail
  CancelToken token;
};

/// A simulated device whose n-th operation of a kind, counted from when it was ordered, fails. It may ask for a coarser
/// alignment than the one that its buffers have.
class FaultyDevice final : public Device {
 public:
  FaultyDevice(std::unique_ptr<SimDevice> sim, std::shared_ptr<FaultSwitches> faults, Bytes alignment = 0)
      : sim_(std::move(sim)), faults_(std::move(faults)), info_(sim_->info()) {
    info_.alignment = std::max(info_.alignment, alignment);
  }
  SimDevice& sim() { return *sim_; }

  const DeviceInfo& info() const override { return info_; }
  Ledger& ledger() override { return sim_->ledger(); }
  MemoryView memory() const override { return sim_->memory(); }
  ggml_backend_buffer_type_t buffer_type() const override { return sim_->buffer_type(); }
  Result<DeviceBuffer> allocate(Bytes size) override {
    tick();
    ++faults_->allocs;
    if (strikes(faults_->alloc)) return fail(Code::device_oom, "no buffer, as ordered", size, size);
    return sim_->allocate(size);
  }
  Result<std::unique_ptr<HostBuffer>> allocate_host(Bytes size) override {
    if (strikes(faults_->host)) return fail(Code::device_oom, "no host memory, as ordered", size, size);
    return sim_->allocate_host(size);
  }
  Result<Moment> set(ggml_tensor* tensor, Bytes offset, std::span<const std::byte> data, Moment not_before,
                     const CancelToken& cancel, Transfer transfer) override {
    tick();
    if (strikes(faults_->copy)) return fail(Code::device_failed, "no copy, as ordered");
    return sim_->set(tensor, offset, data, not_before, cancel, transfer);
  }
  Result<Moment> get(const ggml_tensor* tensor, Bytes offset, std::span<std::byte> data, Moment not_before) override {
    tick();
    if (strikes(faults_->copy)) return fail(Code::device_failed, "no copy, as ordered");
    return sim_->get(tensor, offset, data, not_before);
  }
  Result<Moment> compute(ggml_cgraph* graph, Moment not_before, const CancelToken& cancel) override {
    tick();
    if (strikes(faults_->compute)) return fail(Code::device_failed, "no result, as ordered");
    return sim_->compute(graph, not_before, cancel);
  }
  void discard(ggml_backend_buffer_t buffer, Bytes offset, Bytes size) override { sim_->discard(buffer, offset, size); }
  bool supports(const ggml_tensor* node) const override { return sim_->supports(node); }
  Result<Bytes> measure_backend(std::span<ggml_cgraph* const> graphs) override { return sim_->measure_backend(graphs); }
  bool raw_images(ggml_type type) const override { return sim_->raw_images(type); }
  Rates rates() const override { return sim_->rates(); }
  int live_buffers() const override { return sim_->live_buffers(); }
  void set_log(LogSink log) override { sim_->set_log(std::move(log)); }

 private:
  void tick() {
    if (faults_->cancel.strikes()) faults_->token.cancel();
  }
  bool strikes(Countdown& countdown) {
    if (!countdown.strikes()) return false;
    ++faults_->struck;
    return true;
  }
  std::unique_ptr<SimDevice> sim_;
  std::shared_ptr<FaultSwitches> faults_;
  DeviceInfo info_;
};

}  // namespace sluice::test
