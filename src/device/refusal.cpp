#include "device/refusal.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <thread>

namespace sluice {
namespace {

using std::chrono::milliseconds;
constexpr std::array kWaits = {milliseconds{0}, milliseconds{0},  milliseconds{1},  milliseconds{2}, milliseconds{4},
                               milliseconds{8}, milliseconds{16}, milliseconds{32}, milliseconds{37}};
static_assert(kWaits.size() + 1 == kRefusalTries);

/// The driver's words, and what is known beside them.
Error refusal(const Device& device, Error said) {
  const MemoryView memory = device.memory();
  said.message += memory.known
                      ? fmt::format("; {} of {} free by its report", format_bytes(memory.free), format_bytes(memory.total))
                      : std::string("; its report of free memory cannot be believed");
  said.message += fmt::format("; asked {} times within 100 ms: ", kRefusalTries);
  // A computation asks for nothing that it could name.
  if (memory.known && memory.free >= said.needed && memory.free > 0)
    said.message +=
        "the driver's own limits are in the way, not memory; a lower device budget asks for fewer and smaller buffers";
  else
    said.message += "lower the device budget, or close what else uses the device";
  return said;
}

}  // namespace

Error with_buffers(const Device& device, Error refused) {
  if (refused.code == Code::device_oom) {
    const int buffers = device.live_buffers();
    refused.message += fmt::format("; {} {} alive", buffers, buffers == 1 ? "buffer is" : "buffers are");
  }
  return refused;
}

Status outlast_refusal(Device& device, const std::function<Status()>& attempt, const std::function<void()>& make_way) {
  auto done = attempt();
  const auto refused = [&] { return !done && done.error().code == Code::device_oom; };
  for (std::size_t i = 0; i < kWaits.size() && refused(); ++i) {
    device.synchronise();
    if (i == 1 && make_way) make_way();
    if (kWaits[i].count() > 0) std::this_thread::sleep_for(kWaits[i]);
    done = attempt();
  }
  if (refused()) return fail(refusal(device, std::move(done).error()));
  return done;
}

Result<Moment> submit(Device& device, ggml_cgraph* graph, Moment not_before, const CancelToken& cancel) {
  Moment ended = 0;
  SLUICE_TRY(outlast_refusal(device, [&]() -> Status {
    auto done = device.compute(graph, not_before, cancel);
    if (!done) return fail(with_buffers(device, std::move(done).error()));
    ended = *done;
    return {};
  }));
  return ended;
}

}  // namespace sluice
