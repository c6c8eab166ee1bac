#pragma once

#include <span>
#include <string>
#include <vector>

#include "device/sim_device.h"

namespace sluice::bench {

/// When a stage began: what it works in, and how many events the device's log had then.
struct StageMark {
  std::string name;
  std::size_t events = 0;
  Bytes transient = 0;  ///< of the zone, from its start: slots, state and workspace
};

/// What lies on a device from a moment on, until the next sample's.
struct MemorySample {
  double at_s = 0;
  Bytes residents = 0;  ///< blocks that stay, wherever they lie
  Bytes passing = 0;    ///< blocks in slots
  Bytes working = 0;    ///< state and workspace: what the stage that runs has besides its slots
  Bytes allocated = 0;  ///< buffers and the backend's own
};

/// Reads a simulated device's log in virtual time. Copies of a stage are put after the stage's beginning, with their own
/// durations. `zone` is the size of the arena's zone, which is one buffer; all other buffers are shelves. Pure.
std::vector<MemorySample> memory_timeline(std::span<const SimEvent> log, std::span<const StageMark> marks, Bytes zone);

/// Draws samples as stacked areas below the budget's line, with the stages' names above. One SVG document. Pure.
std::string draw_timeline(std::span<const MemorySample> samples, std::span<const std::pair<double, std::string>> stages,
                          Bytes budget, const std::string& title);

}  // namespace sluice::bench
