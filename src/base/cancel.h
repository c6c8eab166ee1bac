#pragma once

#include <atomic>
#include <memory>

namespace sluice {

/// A shared flag: whoever holds a copy may set it; work looks at it between blocks and inside ggml's abort callback.
/// Threads: any. Signal safe: `cancel` is one atomic store.
class CancelToken {
 public:
  CancelToken() : flag_(std::make_shared<std::atomic<bool>>(false)) {}
  void cancel() const { flag_->store(true, std::memory_order_relaxed); }
  void reset() const { flag_->store(false, std::memory_order_relaxed); }
  bool cancelled() const { return flag_->load(std::memory_order_relaxed); }

 private:
  std::shared_ptr<std::atomic<bool>> flag_;
};

}  // namespace sluice
