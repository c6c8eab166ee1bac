#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "device/device_name.h"

namespace sluice {

/// A simulated device, in numbers. docs/simulated-device.md has each option with an example.
struct SimOptions {
  std::string label;        ///< tells several simulated devices apart: "sim:<label>"
  Bytes memory = 64 * GiB;  ///< capacity; buffers and the backend's own bytes above it are refused like by a driver
  /// Rates of virtual time. If neither is given, the device runs in real time; if one is, operations of the other kind take no
  /// time.
  std::optional<double> link_bytes_per_s, flops_per_s;
  double link_latency_s = 0;  ///< of each copy
  double node_s = 0;          ///< of each node of a graph, beside its operations

  Bytes max_buffer = GiB;  ///< larger buffers are refused
  std::optional<Bytes>
      preferred_buffer;           ///< what the device says its largest buffer is; none: max_buffer. At most 1 GiB is believed
  int max_buffers = 0;            ///< live buffers above this are refused; 0: no such cap
  std::optional<Bytes> fragment;  ///< free memory lies in pieces: a larger buffer is refused while any other is there
  int max_submit_buffers = 0;     ///< a computation is refused while more buffers than this are there; 0: no such cap
  double late_free_s = 0;         ///< freed buffers are there for so long yet
  std::uint64_t late_free_calls = 0;  ///< or until the device was asked so often for a buffer or to finish what it was given
  std::set<std::string> lacks;        ///< operators that the device does not support: ggml_op_desc, "MUL_MAT", "GELU"
  std::optional<Bytes> free, total;   ///< what the device reports, instead of the truth
  Bytes pinned = 0;                   ///< most host memory handed out as pinned at once; the rest is pageable
  Bytes backend = 0;                  ///< bytes of the capacity that the driver holds for itself from the start

  /// The n-th operation of its kind since the device was opened fails, counted from 1; 0: none.
  std::uint64_t fail_alloc = 0, fail_host = 0, fail_copy = 0, fail_compute = 0;
  std::uint64_t fail_allocs = 1;            ///< how many allocations fail from the n-th on
  std::optional<std::uint64_t> delay_seed;  ///< real, random delays around copies and computations
  double delay_s = 300e-6;                  ///< the longest of them
  bool poison = true;                       ///< fresh and discarded bytes are 0xFF: NaN in every float type
  bool row_split = false;                   ///< rows of weights may lie on other simulated devices that have this too
  int threads = 0;                          ///< compute threads; 0: as many as the process may run on

  /// Errors: invalid_argument, naming the option.
  Status validate() const;
};

/// Reads the options of "sim:…". Errors: invalid_argument, naming the option.
Result<SimOptions> parse_sim_options(const DeviceName& name);

/// Names of all options, as `parse_sim_options` takes them.
std::span<const std::string_view> sim_option_names();

}  // namespace sluice
