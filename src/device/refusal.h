#pragma once

#include <functional>

#include "device/device.h"

namespace sluice {

/// How often a driver that refuses is asked, the first time included. The waits in between are 100 ms in all.
inline constexpr int kRefusalTries = 10;

/// The error with the number of the device's buffers that are alive, where it is a refusal (device_oom): for whoever meets one,
/// before anything is rolled back. Drivers bound that number, and say nothing of it.
Error with_buffers(const Device& device, Error refused);

/// Does `attempt`. While it ends with device_oom it is tried again: after the device has finished what it was given (drivers
/// free late), then after `make_way`, then after waits that double, kRefusalTries times in all. Every other error is returned
/// at once. The refusal that is left says beside the attempt's own words what the device reports as free, that it was tried
/// again, and what to do. Cost: nothing where the first attempt succeeds, else at most 100 ms beside the attempts.
Status outlast_refusal(Device& device, const std::function<Status()>& attempt, const std::function<void()>& make_way = {});

/// device.compute() that outlasts a refusal: some drivers refuse to submit for the number of live buffers, or for memory that
/// comes free a moment later. A refused graph has not run, and running one again gives the same bits: blocks write what they do
/// not read. Errors: those of compute.
Result<Moment> submit(Device& device, ggml_cgraph* graph, Moment not_before, const CancelToken& cancel);

}  // namespace sluice
