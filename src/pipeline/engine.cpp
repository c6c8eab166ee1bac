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
  Status set_budget(const Budget& budget) override {
    SLUICE_TRY(resolve_budget(budget, *core_->device, core_->memory.taken(), core_->options.reserve));
    const std::lock_guard lock(core_->mutex);
    core_->budget = budget;
    return {};
  }
  void unload(bool host) override { core_->unload(host); }
  DeviceUse use() const override {
    DeviceUse use;
    use.device = core_->device->info().name;
    use.budget = core_->memory.budget();
    use.zone = core_->memory.zone();
    for (const auto& o : core_->memory.occupants()) (o.booked ? use.mapped : use.residents) += o.size;
    use.backend = core_->memory.backend();
    use.host_pinned = core_->store.pinned_ledger().report().total;
    use.host_pageable = core_->store.host_ledger().report().total - use.host_pinned;
    return use;
  }

 private:
  static tl::unexpected<Error> no_model() {
    return fail(Code::invalid_argument, "the engine was opened without a model: add one");
  }

  std::shared_ptr<EngineCore> core_;
  std::unique_ptr<ModelSession> own_;
  std::optional<IdleTimer> timer_;
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::open(EngineOptions options) {
  SLUICE_ASSIGN(auto device, open_device(options.device));
  SLUICE_ASSIGN(const auto budget, resolve_budget(options.device_budget, *device, 0, options.reserve));
  auto engine = std::make_unique<EngineImpl>(std::make_shared<EngineCore>(std::move(options), std::move(device), budget));
  SLUICE_TRY(engine->load());
  return engine;
}

Status write_picture(const std::string& path, const Picture& picture) {
  return write_png(path, {picture.width, picture.height, picture.rgb}, {{"parameters", picture.parameters}});
}

}  // namespace sluice
