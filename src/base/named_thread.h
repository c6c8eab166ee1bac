#pragma once

#include <string>
#include <thread>

namespace sluice {

/// A thread with a name (as debuggers and `top -H` show it) that is joined when it goes.
class NamedThread {
 public:
  NamedThread() = default;
  /// `name`: at most 15 characters.
  template <typename F>
  NamedThread(std::string name, F body)
      : thread_([name = std::move(name), body = std::move(body)]() mutable {
          set_current_name(name);
          body();
        }) {}
  NamedThread(NamedThread&&) noexcept = default;
  NamedThread& operator=(NamedThread&& other) noexcept {
    join();
    thread_ = std::move(other.thread_);
    return *this;
  }
  ~NamedThread() { join(); }

  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  static void set_current_name(const std::string& name);
  std::thread thread_;
};

}  // namespace sluice
