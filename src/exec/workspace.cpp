#include "exec/workspace.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "exec/pack.h"

namespace sluice {
namespace {

ggml_tensor* root_of(ggml_tensor* tensor) {
  while (tensor->view_src) tensor = tensor->view_src;
  return tensor;
}

/// Operators whose every backend reads an element (softmax, norm, rope: a row) completely before it writes it, so that the
/// result may take the operand's place. What ggml's own allocator relies on; group norm, for one, is left out: kernels differ.
bool computes_in_place(ggml_op op) {
  switch (op) {
    case GGML_OP_SCALE:
    case GGML_OP_ADD:
    case GGML_OP_ADD1:
    case GGML_OP_SUB:
    case GGML_OP_MUL:
    case GGML_OP_DIV:
    case GGML_OP_SQR:
    case GGML_OP_SQRT:
    case GGML_OP_LOG:
    case GGML_OP_UNARY:
    case GGML_OP_ROPE:
    case GGML_OP_RMS_NORM:
    case GGML_OP_DIAG_MASK_ZERO:
    case GGML_OP_DIAG_MASK_INF:
    case GGML_OP_SOFT_MAX: return true;
    default: return false;
  }
}

/// Only the operand whose elements are the result's own may be replaced: a broadcast second operand, a mask or a table is read
/// again.
bool elementwise_in(ggml_op op, int source) {
  switch (op) {
    case GGML_OP_ADD:
    case GGML_OP_SUB:
    case GGML_OP_MUL:
    case GGML_OP_DIV: return source <= 1;
    default: return source == 0;
  }
}

/// A range of the workspace, taken over by one node after another.
struct Place {
  Bytes size = 0;
  int from = 0, to = 0;  ///< node indices
};

class Placer {
 public:
  Placer(ggml_cgraph* graph, const std::vector<ggml_tensor*>& elsewhere, ggml_backend_buffer_type_t type, Bytes alignment)
      : graph_(graph),
        count_(ggml_graph_n_nodes(graph)),
        elsewhere_(elsewhere.begin(), elsewhere.end()),
        type_(type),
        alignment_(alignment) {
    for (int i = 0; i < count_; ++i) {
      ggml_tensor* node = ggml_graph_node(graph_, i);
      if (needs_memory(node)) last_reader_.emplace(node, i);
    }
    for (int i = 0; i < count_; ++i) {
      ggml_tensor* node = ggml_graph_node(graph_, i);
      touch(root_of(node), i);  // a view that writes (a copy into it, say) needs its root as much as one that reads
      for (auto* source : node->src)
        if (source) touch(root_of(source), i);
      if (node->flags & GGML_TENSOR_FLAG_OUTPUT) touch(root_of(node), count_);
    }
  }

  WorkspaceLayout place(bool take_over, Bytes chunk) {
    std::vector<Place> places;
    std::unordered_map<const ggml_tensor*, std::size_t> place_of;
    WorkspaceLayout layout;
    for (int i = 0; i < count_; ++i) {
      ggml_tensor* node = ggml_graph_node(graph_, i);
      if (!last_reader_.count(node)) continue;
      const Bytes size = ggml_backend_buft_get_alloc_size(type_, node);
      layout.largest = std::max(layout.largest, size);
      const ggml_tensor* heir_to = take_over ? replaceable_source(node, i, size) : nullptr;
      std::size_t place = places.size();
      if (heir_to) {
        place = place_of.at(heir_to);
      } else {
        places.push_back({size, i, i});
      }
      places[place].to = std::min(last_reader_.at(node), count_ - 1);
      place_of.emplace(node, place);
      layout.nodes.push_back({node, place});
    }
    std::vector<Extent> extents;
    extents.reserve(places.size());
    for (const auto& place : places) extents.push_back({place.size, place.from, place.to});
    const auto packing = pack_extents(extents, std::max(count_, 1), alignment_, chunk);
    for (auto& node : layout.nodes) node.offset = packing.offsets[node.offset];
    layout.size = packing.size;
    return layout;
  }

 private:
  bool needs_memory(const ggml_tensor* node) const {
    return node->view_src == nullptr && node->op != GGML_OP_NONE && !elsewhere_.count(node);
  }
  void touch(const ggml_tensor* root, int index) {
    if (const auto it = last_reader_.find(root); it != last_reader_.end()) it->second = std::max(it->second, index);
  }

  /// The operand (its root) whose bytes `node`, the i-th, may take over, or null.
  const ggml_tensor* replaceable_source(const ggml_tensor* node, int i, Bytes size) const {
    if (!computes_in_place(node->op) || !ggml_is_contiguous(node)) return nullptr;
    for (int s = 0; s < GGML_MAX_SRC; ++s) {
      ggml_tensor* source = node->src[s];
      if (!source || !elementwise_in(node->op, s)) continue;
      ggml_tensor* root = root_of(source);
      const auto last = last_reader_.find(root);
      if (last == last_reader_.end() || last->second != i) continue;
      // Same elements at the same places, through views too.
      if (source->type != node->type || !ggml_are_same_shape(source, node) || !ggml_is_contiguous(source)) continue;
      if (source->view_offs != 0 || ggml_backend_buft_get_alloc_size(type_, root) != size) continue;
      int uses = 0;
      for (auto* other : node->src) uses += other && root_of(other) == root;
      if (uses == 1) return root;
    }
    return nullptr;
  }

  ggml_cgraph* graph_;
  int count_;
  std::unordered_set<const ggml_tensor*> elsewhere_;
  ggml_backend_buffer_type_t type_;
  const Bytes alignment_;
  std::unordered_map<const ggml_tensor*, int> last_reader_;  ///< of every placed node; count_: read after the graph
};

}  // namespace

WorkspaceLayout place_workspace(ggml_cgraph* graph, const std::vector<ggml_tensor*>& elsewhere, ggml_backend_buffer_type_t type,
                                Bytes chunk, Bytes alignment) {
  Placer placer(graph, elsewhere, type, std::max<Bytes>(alignment, ggml_backend_buft_get_alignment(type)));
  // Taking over fixes two addresses at once, which now and then packs worse.
  auto tight = placer.place(true, chunk);
  auto loose = placer.place(false, chunk);
  return loose.size < tight.size ? loose : tight;
}

}  // namespace sluice
