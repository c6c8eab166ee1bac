#include "base/symbol.h"

#if __has_include(<dlfcn.h>)
#include <dlfcn.h>

namespace sluice {

void* exported_symbol(const char* name, const void* beside) {
  Dl_info info;
  if (beside && dladdr(beside, &info) != 0 && info.dli_fname) {
    // RTLD_NOLOAD: a handle to what is already there, so nothing new is loaded and closing it unloads nothing.
    if (void* library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) {
      void* found = dlsym(library, name);
      dlclose(library);
      if (found) return found;
    }
  }
  return dlsym(RTLD_DEFAULT, name);
}

}  // namespace sluice

#else

namespace sluice {

void* exported_symbol(const char*, const void*) { return nullptr; }

}  // namespace sluice

#endif
