#include "pipeline/idle_timer.h"

#include <algorithm>
#include <chrono>

namespace sluice {

IdleTimer::IdleTimer(std::shared_ptr<EngineCore> core, double seconds) : core_(std::move(core)) {
  thread_ = NamedThread("sluice-idle", [this, seconds] { loop(seconds); });
}

IdleTimer::~IdleTimer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

void IdleTimer::loop(double seconds) {
  // What has been given back since the last request: nothing, the device, the host's memory too.
  int tiers = 0;
  std::unique_lock lock(mutex_);
  const auto look = std::chrono::duration<double>(std::max(seconds / 4, 0.01));
  while (!stopped_.wait_for(lock, look, [&] { return stopping_; })) {
    int due = 0;
    {
      const std::lock_guard core_lock(core_->mutex);
      if (core_->running == 0) due = static_cast<int>(std::min(core_->idle.seconds() / std::max(seconds, 1e-9), 2.0));
    }
    if (due > tiers) core_->unload(due > 1);
    tiers = due;
  }
}

}  // namespace sluice
