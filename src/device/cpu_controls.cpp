#include "device/cpu_controls.h"

#include "base/symbol.h"
#include "ggml-cpu.h"

namespace sluice {
namespace {

template <typename Function>
void find(ggml_backend_reg_t reg, const char* name, Function& out) {
  out = reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(reg, name));
}

}  // namespace

CpuControls CpuControls::of(ggml_backend_reg_t reg) {
  CpuControls controls;
  find(reg, "ggml_backend_set_n_threads", controls.set_n_threads);
  find(reg, "ggml_backend_set_abort_callback", controls.set_abort_callback);
  find(reg, "ggml_threadpool_new", controls.threadpool_new);
  find(reg, "ggml_threadpool_free", controls.threadpool_free);
  find(reg, "ggml_backend_cpu_set_threadpool", controls.set_threadpool);
  controls.graph_plan = exported_symbol("ggml_graph_plan", reinterpret_cast<const void*>(controls.set_n_threads));
  return controls;
}

Result<Bytes> CpuControls::work_size(const ggml_cgraph* graph, int threads) const {
  if (!graph_plan)
    return fail(Code::unsupported, "ggml's CPU backend does not export ggml_graph_plan; its work buffer cannot be planned");
  const auto plan = reinterpret_cast<decltype(&ggml_graph_plan)>(graph_plan);
  return Bytes{plan(graph, threads, nullptr).work_size};
}

}  // namespace sluice
