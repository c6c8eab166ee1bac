#include "base/named_thread.h"

#if defined(__linux__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace sluice {

void NamedThread::set_current_name(const std::string& name) {
#if defined(__linux__)
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
#elif defined(__APPLE__)
  pthread_setname_np(name.substr(0, 15).c_str());
#else
  (void)name;
#endif
}

}  // namespace sluice
