#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace sluice {

/// What a stage's blocks would take and cost if all of them ran on one device. Vectors are per block.
struct SpreadDevice {
  std::optional<Bytes> capacity;  ///< bytes that weights, state and workspace may take there; none: unlimited
  double link_bytes_per_s = 10e9;
  std::vector<Bytes> weights;    ///< of its image
  std::vector<Bytes> workspace;  ///< of its smallest lane
  std::vector<double> compute_s;
  std::vector<std::string> unable;  ///< what the device lacks for it, in words; empty: it can run there
};

/// A value between blocks, of all lanes together.
struct SpreadValue {
  Bytes size = 0;
  int written_by = -1;       ///< block; -1: the host, on every device that reads it
  std::vector<int> read_by;  ///< blocks, ascending
  Bytes lane = 0;            ///< its smallest lane's part of `size`; 0: there is one lane
  bool once = false;         ///< the host writes it before the first sweep only: it stays
  bool output = false;       ///< the host reads it after the sweep
};

/// Which device each block runs on, and how that looks beforehand.
struct Spread {
  std::vector<std::size_t> device_of;  ///< per block: index into `devices`
  std::vector<std::string> elsewhere;  ///< per block: what the device whose turn it was lacks; empty: it got the block
  double step_s = 0;                   ///< max(compute, bytes that cannot stay ÷ rate of each link)
  std::vector<Bytes> least;            ///< per device: weights, state and workspace of its most demanding block, at least
  bool fits = false;                   ///< least ≤ capacity everywhere: necessary, not sufficient
};

/// Ways to deal a stage's blocks out to devices, the best first: consecutive runs along the list of devices, in its order, any
/// of them empty; a block that its device cannot run goes to the nearest in the list that can, or else to `fallback`, which
/// gets nothing otherwise. Those that fit come first; then those whose step is within 5 % of the shortest, and among them the
/// ones that load the devices most nearly in proportion to their capacities (the bytes a device can hold of this stage), then
/// the ones between whose devices the fewest bytes cross. All cuts are tried as long as there are at most some 20,000, else
/// cuts at a regular spacing. Empty where a block can run nowhere. Pure: same input, same answer.
std::vector<Spread> spread_blocks(const std::vector<SpreadDevice>& devices, const std::vector<SpreadValue>& values,
                                  std::optional<std::size_t> fallback = std::nullopt);

}  // namespace sluice
