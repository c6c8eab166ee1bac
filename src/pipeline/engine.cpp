#include "sluice/engine.h"

#include <optional>

#include "io/image.h"
#include "pipeline/budget.h"
#include "pipeline/engine_core.h"
#include "pipeline/idle_timer.h"

namespace sluice {
namespace {

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(std::shared_ptr<EngineCore> core) : core_(std::move(core)) {
    if (core_->options.idle_unload_s) timer_.emplace(core_, *core_->options.idle_unload_s);
  }

  Status load() {
    if (core_->options.model.empty()) return {};
    SLUICE_ASSIGN(own_, open_model_session(core_, core_->options));
    return {};
  }

  Result<std::unique_ptr<ModelSession>> add(const ModelOptions& options) override { return open_model_session(core_, options); }
  Result<PlanReport> plan(const Request& request) override {
    if (!own_) return no_model();
    return own_->plan(request);
  }
  Result<Generated> generate(const Request& request, const ProgressFunction& progress, const CancelToken& cancel) override {
    if (!own_) return no_model();
    return own_->generate(request, progress, cancel);
  }
  Status set_budget(const Budget& budget, const std::string& device) override {
    SLUICE_ASSIGN(const std::size_t i, core_->find(device));
    SLUICE_TRY(resolve_budget(budget, *core_->devices[i], core_->memories[i]->taken(), core_->options.reserve));
    const std::lock_guard lock(core_->mutex);
    core_->budgets[i] = budget;
    return {};
  }
  void unload(bool host) override { core_->unload(host); }
  DeviceUse use() const override { return use_of(0); }
  std::vector<DeviceUse> uses() const override {
    std::vector<DeviceUse> uses;
    for (std::size_t i = 0; i < core_->devices.size(); ++i)
      if (i != core_->fallback || core_->memories[i]->taken() > 0) uses.push_back(use_of(i));
    return uses;
  }

 private:
  DeviceUse use_of(std::size_t device) const {
    const DeviceMemory& memory = *core_->memories[device];
    DeviceUse use;
    use.device = core_->devices[device]->info().name;
    use.budget = memory.budget();
    use.zone = memory.zone();
    for (const auto& o : memory.occupants()) (o.booked ? use.mapped : use.residents) += o.size;
    use.residents += core_->store.split_on(device);
    use.backend = memory.backend();
    use.host_pinned = core_->store.pinned_ledger().report().total;
    use.host_pageable = core_->store.host_ledger().report().total - use.host_pinned;
    return use;
  }

  static tl::unexpected<Error> no_model() {
    return fail(Code::invalid_argument, "the engine was opened without a model: add one");
  }

  std::shared_ptr<EngineCore> core_;
  std::unique_ptr<ModelSession> own_;
  std::optional<IdleTimer> timer_;
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::open(EngineOptions options) {
  SLUICE_ASSIGN(auto devices, EngineDevices::open(options));
  auto engine = std::make_unique<EngineImpl>(std::make_shared<EngineCore>(std::move(options), std::move(devices)));
  SLUICE_TRY(engine->load());
  return engine;
}

Status write_picture(const std::string& path, const Picture& picture) {
  return write_png(path, {picture.width, picture.height, picture.rgb}, {{"parameters", picture.parameters}});
}

}  // namespace sluice
