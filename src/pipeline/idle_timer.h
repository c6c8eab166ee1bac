#pragma once

#include <condition_variable>
#include <mutex>

#include "base/named_thread.h"
#include "pipeline/engine_core.h"

namespace sluice {

/// Gives an engine's memory back tier by tier while nobody asks for anything: the device after `seconds`, what is kept in host
/// memory after as many again. One thread, joined when it goes.
class IdleTimer {
 public:
  IdleTimer(std::shared_ptr<EngineCore> core, double seconds);
  ~IdleTimer();
  IdleTimer(const IdleTimer&) = delete;
  IdleTimer& operator=(const IdleTimer&) = delete;

 private:
  void loop(double seconds);

  std::shared_ptr<EngineCore> core_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  NamedThread thread_;  // last: joined before anything above goes
};

}  // namespace sluice
