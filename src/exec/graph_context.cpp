#include "exec/graph_context.h"

#include <new>

#include "ggml.h"

namespace sluice {

Result<GraphContext> GraphContext::open(std::size_t bytes) {
  std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]);
  if (!memory) return fail(Code::device_oom, "no host memory for a graph", bytes);
  SLUICE_ASSIGN(GraphContext context, open_in(memory.get(), bytes));
  context.memory_ = std::move(memory);
  return context;
}

Result<GraphContext> GraphContext::open_in(void* memory, std::size_t bytes) {
  GraphContext context;
  context.context_.reset(ggml_init({bytes, memory, /*no_alloc=*/true}));
  if (!context.context_) return fail(Code::device_failed, "ggml makes no context for a graph");
  return context;
}

}  // namespace sluice
