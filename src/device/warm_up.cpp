#include "device/warm_up.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-cpp.h"

namespace sluice {
namespace {

class Fnv {
 public:
  void add(std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) hash_ = (hash_ ^ ((value >> (8 * byte)) & 0xff)) * 1099511628211ull;
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 14695981039346656037ull;
};

void add_tensor(Fnv& hash, const ggml_tensor* t) {
  hash.add(static_cast<std::uint64_t>(t->op));
  hash.add(static_cast<std::uint64_t>(t->type));
  for (int i = 0; i < GGML_MAX_DIMS; ++i) {
    hash.add(static_cast<std::uint64_t>(t->ne[i]));
    hash.add(t->nb[i]);
  }
  for (const std::int32_t parameter : t->op_params) hash.add(static_cast<std::uint32_t>(parameter));
}

/// Nodes, their operands and what those are views of, each once.
std::vector<ggml_tensor*> tensors_of(ggml_cgraph* graph) {
  std::vector<ggml_tensor*> all;
  const auto add = [&all](ggml_tensor* t) {
    for (; t; t = t->view_src) all.push_back(t);
  };
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    ggml_tensor* node = ggml_graph_node(graph, i);
    add(node);
    for (ggml_tensor* operand : node->src) add(operand);
  }
  std::ranges::sort(all);
  all.erase(std::ranges::unique(all).begin(), all.end());
  return all;
}

struct FreeAllocator {
  void operator()(ggml_gallocr_t allocator) const { ggml_gallocr_free(allocator); }
};
using Allocator = std::unique_ptr<ggml_gallocr, FreeAllocator>;

}  // namespace

std::uint64_t graph_signature(const ggml_cgraph* graph) {
  Fnv hash;
  auto* nodes = const_cast<ggml_cgraph*>(graph);  // ggml's accessors are not const; nothing is changed
  for (int i = 0; i < ggml_graph_n_nodes(nodes); ++i) {
    const ggml_tensor* node = ggml_graph_node(nodes, i);
    add_tensor(hash, node);
    for (const ggml_tensor* operand : node->src)
      if (operand) add_tensor(hash, operand);
  }
  return hash.value();
}

Bytes warm_up_bytes(ggml_backend_buffer_type_t buffer_type, ggml_cgraph* graph) {
  const Allocator allocator{ggml_gallocr_new(buffer_type)};
  std::size_t size = 0;
  ggml_gallocr_reserve_n_size(allocator.get(), graph, nullptr, nullptr, &size);
  return size;
}

Status warm_up(ggml_backend_t backend, ggml_backend_buffer_type_t buffer_type, ggml_cgraph* graph) {
  const auto tensors = tensors_of(graph);
  for (const ggml_tensor* t : tensors)
    if (t->data || t->buffer)
      return fail(Code::invalid_argument,
                  "tensor '" + std::string(t->name) + "' has memory already: its graph cannot be warmed up");
  const Allocator allocator{ggml_gallocr_new(buffer_type)};
  // The tensors are bound to their real places later, and can be bound once only.
  const auto unbind = [&tensors](void*) {
    for (ggml_tensor* t : tensors) {
      t->data = nullptr;
      t->buffer = nullptr;
      t->extra = nullptr;
    }
  };
  int some = 0;
  const std::unique_ptr<int, decltype(unbind)> unbound{&some, unbind};
  if (!ggml_gallocr_alloc_graph(allocator.get(), graph))
    return fail(Code::device_oom, "no memory to warm a graph up", warm_up_bytes(buffer_type, graph));
  std::set<ggml_backend_buffer_t> buffers;
  for (const ggml_tensor* t : tensors)
    if (t->buffer) buffers.insert(t->buffer);
  for (ggml_backend_buffer_t buffer : buffers) ggml_backend_buffer_clear(buffer, 0);
  if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS)
    return fail(Code::device_failed, "the device failed a graph that was warmed up");
  ggml_backend_synchronize(backend);
  return {};
}

}  // namespace sluice
