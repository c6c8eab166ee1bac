#include "exec/bound_nodes.h"

#include <fmt/format.h>

namespace sluice {
namespace {

bool computes(const ggml_tensor* node) {
  return !ggml_is_empty(node) && node->op != GGML_OP_NONE && node->op != GGML_OP_RESHAPE && node->op != GGML_OP_VIEW &&
         node->op != GGML_OP_PERMUTE && node->op != GGML_OP_TRANSPOSE;
}

ggml_backend_buffer_t buffer_of(const ggml_tensor* t) { return t->view_src ? t->view_src->buffer : t->buffer; }

}  // namespace

Status check_bound_nodes(const Device& device, ggml_cgraph* graph) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor* node = ggml_graph_node(graph, i);
    if (!computes(node)) continue;
    const auto has_memory = [](const ggml_tensor* t) { return ggml_is_empty(t) || (t->data && buffer_of(t)); };
    bool bound = has_memory(node);
    for (const ggml_tensor* source : node->src) bound = bound && (!source || has_memory(source));
    if (!bound) return fail(Code::invalid_argument, fmt::format("node {} has no place", ggml_op_desc(node)));
    if (device.supports(node)) continue;
    const ggml_tensor* first = node->src[0] ? node->src[0] : node;
    return fail(Code::unsupported,
                fmt::format("{} cannot run {} on {} in a buffer of {}", device.info().name, ggml_op_desc(node),
                            ggml_type_name(first->type), ggml_backend_buffer_name(buffer_of(first))));
  }
  return {};
}

}  // namespace sluice
