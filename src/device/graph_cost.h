#pragma once

#include "ggml.h"

namespace sluice {

/// Floating-point operations of a graph: matrix products, convolutions and attention, a multiply-add counted as two; everything
/// else (also im2col, which only copies) counts nothing. Pure; needs no memory bound.
double graph_flops(const ggml_cgraph* graph);

}  // namespace sluice
