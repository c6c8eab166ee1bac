#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "exec/request_plan.h"
#include "exec/sweep.h"
#include "residency/device_memory.h"
#include "residency/host_cache.h"

namespace sluice {

/// What a session plans with.
struct SessionOptions {
  PlanOptions plan;
  std::optional<Variants> variants;  ///< none: each device's own table
  LogSink log;
  /// Brings the devices' budgets up to date with what their drivers report. Asked before each request and between sweeps.
  std::function<Status()> follow;
};

/// A request's stages with their graphs and plans; what `plan` prints and `begin` runs.
struct Prepared {
  /// What runs on one device.
  struct Part {
    std::size_t device = 0;           ///< index into the session's devices
    std::vector<std::size_t> stages;  ///< indices, in order
    RequestPlan plan;                 ///< parallel to `stages`
    RequestPlan placed;               ///< the same, as it is placed now
    Bytes backend = 0;                ///< the backend's account, margin included
    std::set<BlockId> fixed;          ///< blocks that could not leave when it was planned: kept beside the plan
    std::optional<Bytes> capacity;    ///< what it was planned in; none: unlimited
    Bytes chunk = 0;                  ///< bytes of one buffer, where an object needs more than the device prefers; else 0
    std::string giant;                ///< that object, for messages
    Bytes aside = 0;                  ///< bytes of the budget that were not the plan's to use
  };
  std::vector<StageSpec> specs;
  std::vector<Stage> stages;
  std::vector<Part> parts;
  std::vector<std::size_t> part_of;   ///< per stage
  std::vector<std::size_t> index_in;  ///< per stage: its index in its part
  std::vector<int> generation;        ///< per stage: of the arena it is bound in

  /// Of the first device, where all of it runs on one.
  const RequestPlan& plan() const { return parts[0].plan; }
  Bytes backend() const { return parts[0].backend; }
  const StagePlacement& placement(std::size_t stage) const { return parts[part_of[stage]].placed.stages[index_in[stage]]; }
};

/// Runs stages of a weight store's components, each on its component's device: keeps plans by shapes and budget, holds the
/// device while a request runs. Several sessions share devices and store; closing one returns every byte that only it used.
/// Threads: one. After any error the ledgers hold what they held before the request, and the next request works.
class Session {
 public:
  /// `memories`: one per device of the store, in its order. All outlive the session.
  Session(std::vector<DeviceMemory*> memories, WeightStore& store, SessionOptions options);
  ~Session();

  /// Builds (or finds) graphs and plans for these stages; nothing is allocated on a device.
  /// Errors: over_budget with needed = the smallest budget (backend included) and available = the budget.
  Result<Prepared*> prepare(const std::vector<StageSpec>& specs);
  /// Takes the devices, makes room and binds every stage: all memory of the request is there before its first step. Stages in
  /// `skip` will not run: nothing is loaded for them. Followed by `finish`, whatever comes. Errors: over_budget, device_oom,
  /// cancelled (while waiting for another request).
  Status bind(Prepared& prepared, const CancelToken& cancel, const std::vector<bool>& skip = {});
  /// Readies a stage of a bound request and gives its runner. The runner must go before the next `begin`. `sweeps`: how many
  /// there will be; 0: as specified.
  Result<std::unique_ptr<SweepRunner>> begin(Prepared& prepared, std::size_t stage, const CancelToken& cancel, int sweeps = 0);
  /// Ends a stage: its lent bytes go back to the arena.
  void end();
  /// Ends a request: the devices are free for others. Where it failed, what it had loaded and allocated is given back.
  void finish(bool done);

  /// Whether a device's budget is another than `prepared` was planned in. To be asked between sweeps, after `end`: then
  /// `prepare` and `bind` again and go on; the bits stay.
  bool outdated(const Prepared& prepared) const;
  /// SessionOptions::follow.
  Status follow() const { return options_.follow ? options_.follow() : Status{}; }

  /// Forgets plans and caches, not device copies. Not while a request runs.
  void forget_plans();
  /// Gives up every device copy of the session's components, its plans and caches. Not while a request runs.
  void release();
  /// Forgets plans and copies of a component and re-places it. Errors: those of WeightStore::place.
  Status place(ComponentId component, std::size_t device);

  struct Counters {
    int plans_built = 0;
  };
  Counters counters() const { return counters_; }
  const SessionOptions& options() const { return options_; }
  /// The operator variants every graph on a device is built with.
  const Variants& variants(std::size_t device = 0) const { return variants_[device]; }
  DeviceMemory& memory(std::size_t device = 0) { return *memories_[device]; }
  /// Results kept between requests.
  HostCache& cache() { return cache_; }

 private:
  void measure(Prepared::Part& part, std::set<BlockId> planned) const;
  void choose_zone(Prepared& prepared, Prepared::Part& part, const std::vector<bool>& skip) const;
  Status enlarge_buffers(Prepared& prepared, Prepared::Part& part);
  std::vector<StageNeed> stage_needs(const Prepared& prepared, const Prepared::Part& part) const;
  DeviceMemory::Need need_of(const Prepared& prepared, const Prepared::Part& part, const std::vector<bool>& skip) const;
  std::vector<WeightPlace> places_of(const Prepared& prepared, std::size_t stage) const;
  Status bind_stage(Prepared& prepared, std::size_t stage);
  bool fixed(BlockId block) const;
  Status reserve_staging(const Prepared& prepared);

  std::vector<DeviceMemory*> memories_;
  WeightStore& store_;
  SessionOptions options_;
  std::vector<Variants> variants_;
  HostCache cache_;
  std::vector<std::unique_ptr<Prepared>> plans_;  // most recently used last
  std::vector<DeviceMemory::Turn> turns_;         // while a request runs, as are the holds
  std::vector<WeightStore::Hold> holds_;
  std::size_t running_on_ = 0;  // the device of the stage that runs
  std::size_t staging_on_ = 0;  // whose staging buffer the request uses, on whatever device it runs
  struct Before {
    std::size_t device = 0;
    Bytes claim = 0, zone = 0;
  };
  std::vector<Before> before_;                            // the zones of the request's devices before it
  std::vector<std::pair<std::size_t, BlockId>> brought_;  // device, block: given places by this request
  std::vector<Bytes> claims_;                             // per device
  Counters counters_;
};

}  // namespace sluice
