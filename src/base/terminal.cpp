#include "base/terminal.h"

#ifdef _WIN32
#include <io.h>
#else
#include <sys/ioctl.h>
#include <unistd.h>
#endif

namespace sluice {

#ifdef _WIN32
bool stderr_is_terminal() { return _isatty(2) != 0; }
bool stdout_is_terminal() { return _isatty(1) != 0; }
int terminal_columns() { return 80; }
#else
bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }
bool stdout_is_terminal() { return isatty(STDOUT_FILENO) == 1; }
int terminal_columns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}
#endif

}  // namespace sluice
