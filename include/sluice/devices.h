#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/log.h"
#include "base/result.h"

namespace sluice {

/// What was measured on a device, now or, from the cache, at an earlier time. Rates are rounded to two significant figures; 0:
/// not there, or takes no time.
struct DeviceMeasurement {
  Bytes largest_buffer = 0;                        ///< found by asking for it, to one part in 32
  bool largest_at_least = false;                   ///< all that could be asked for was given
  double to_device = 0, to_device_pinned = 0;      ///< bytes per second, from pageable and from pinned host memory
  double from_device = 0, from_device_pinned = 0;  ///< and back
  double latency_s = 0;                            ///< of a small copy
  double flops_per_s = 0;                          ///< products of f32 matrices
  double overlap = -1;                             ///< hidden share of copies beside compute, 0…1; negative: none to be had
  /// What becomes of weights of each type: whole blocks copied as they are, copied tensor by tensor, not computed with.
  std::vector<std::string> raw_types, by_tensor_types, unsupported_types;
};

/// A device, as it describes itself.
struct DeviceSummary {
  std::string name, description;
  std::string kind;       ///< "cpu", "gpu", "integrated", "simulated"
  std::string device_id;  ///< physical identity; may be empty
  Bytes total = 0, free = 0;
  bool memory_known = true;
  std::string memory_doubt;  ///< where it is not: what is wrong with the report
  Bytes alignment = 0;
  Bytes max_buffer = 0;  ///< preferred; at most 1 GiB
  int threads = 0;       ///< compute threads; 0 where it means nothing
  bool host_memory = false, maps_host_memory = false, pinned = false, async = false, events = false;
  std::string note;  ///< e.g. that an NVIDIA card is reached through Vulkan only
  std::optional<DeviceMeasurement> measured;
};

struct DevicesOptions {
  std::string device;        ///< that one alone, as for an engine; empty: all that there are
  bool measure = false;      ///< takes seconds for each device, and most of what it has free for a moment
  std::string cache_folder;  ///< where measurements are kept from run to run; empty: nowhere
  std::function<void(const std::string& device, const std::string& doing)> progress;
  LogSink log;
  CancelToken cancel;
};
/// The devices this build reaches, each with what is known of it. A device among all that cannot be measured says so in its
/// note; the simulated device is listed, and measured only where it is named; its measurements are not kept.
/// Errors: those of opening and measuring the device that is named; cancelled.
Result<std::vector<DeviceSummary>> devices(const DevicesOptions& options);
/// The same, without cache or measuring.
std::vector<DeviceSummary> devices();

/// How fast a file is read when no part of it is in the system's cache.
struct DiskRate {
  std::string path;
  Bytes bytes = 0;  ///< read, from the start on: at most 1 GiB or 3 s
  double bytes_per_s = 0;
};
/// Errors: not_found, io.
Result<DiskRate> measure_disk(const std::string& path);

}  // namespace sluice
