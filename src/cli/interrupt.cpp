#include "cli/interrupt.h"

#include <csignal>

namespace sluice::cli {
namespace {

// A plain pointer, never freed: the handler may run until the process is gone.
const CancelToken* interrupt_token = nullptr;

extern "C" void on_interrupt(int signal) {
  interrupt_token->cancel();
  std::signal(signal, SIG_DFL);
}

}  // namespace

void cancel_on_interrupt(const CancelToken& token) {
  static const CancelToken kept = token;
  interrupt_token = &kept;
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
}

}  // namespace sluice::cli
