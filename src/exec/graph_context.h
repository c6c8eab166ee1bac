#pragma once

#include <cstddef>
#include <memory>

#include "base/result.h"
#include "ggml-cpp.h"

namespace sluice {

/// A ggml context for tensor headers and graphs in memory of our own: where ggml allocates it, running out of memory ends the
/// program.
class GraphContext {
 public:
  /// No context.
  GraphContext() = default;
  /// `bytes` as ggml_init takes them: headers and graphs, no tensor data. Errors: device_oom (host memory).
  static Result<GraphContext> open(std::size_t bytes);
  /// In `memory`, aligned as malloc aligns, which outlives the context. Errors: device_failed.
  static Result<GraphContext> open_in(void* memory, std::size_t bytes);

  ggml_context* get() const { return context_.get(); }

 private:
  std::unique_ptr<std::byte[]> memory_;
  ggml_context_ptr context_;  // before the memory goes
};

}  // namespace sluice
