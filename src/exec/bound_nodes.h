#pragma once

#include "device/device.h"

namespace sluice {

/// Whether the device can run a graph as it is bound. Before binding every node was asked (exec/lane_graph.h), by its types and
/// shapes; backends also look at buffers: at whether a source is in a buffer they can read (a weight used in place from a
/// mapping), and, where rows of a weight are split over cards, at what is done with it. ggml ends the program in such a case.
/// Views that nothing computes are not asked. Errors: unsupported (names node, types and the buffer); invalid_argument where
/// something has no memory. Cost: microseconds a node; allocates nothing.
Status check_bound_nodes(const Device& device, ggml_cgraph* graph);

}  // namespace sluice
