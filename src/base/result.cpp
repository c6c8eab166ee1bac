#include "base/result.h"

namespace sluice {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::not_found: return "not_found";
    case Code::corrupt: return "corrupt";
    case Code::unsupported: return "unsupported";
    case Code::invalid_argument: return "invalid_argument";
    case Code::over_budget: return "over_budget";
    case Code::device_oom: return "device_oom";
    case Code::device_failed: return "device_failed";
    case Code::io: return "io";
    case Code::cancelled: return "cancelled";
  }
  return "unknown";
}

}  // namespace sluice
