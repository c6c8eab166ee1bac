#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "exec/request_plan.h"
#include "exec/spread.h"
#include "exec/sweep.h"
#include "residency/device_memory.h"
#include "residency/host_cache.h"

namespace sluice {

/// What a session plans with.
struct SessionOptions {
  PlanOptions plan;
  std::optional<Variants> variants;  ///< none: each device's own table
  /// A device that gets only blocks which no other device of their component can run.
  std::optional<std::size_t> fallback = std::nullopt;
  LogSink log;
  /// Brings the devices' budgets up to date with what their drivers report. Asked before each request and between sweeps.
  std::function<Status()> follow;
};

/// A request's stages with their graphs and plans; what `plan` prints and `begin` runs.
struct Prepared {
  /// A stage's section on the part's device.
  struct Share {
    std::size_t stage = 0, section = 0;
  };
  /// What runs on one device.
  struct Part {
    std::size_t device = 0;         ///< index into the session's devices
    std::vector<Share> shares;      ///< in the order of the stages
    RequestPlan plan;               ///< parallel to `shares`
    RequestPlan placed;             ///< the same, as it is placed now
    Bytes backend = 0;              ///< the backend's account, margin included
    std::set<BlockId> fixed;        ///< blocks that could not leave when it was planned: kept beside the plan
    std::optional<Bytes> capacity;  ///< what it was planned in; none: unlimited
    Bytes chunk = 0;                ///< bytes of one buffer, where an object needs more than the device prefers; else 0
    std::string giant;              ///< that object, for messages
    Bytes aside = 0;                ///< bytes of the budget that were not the plan's to use
  };
  std::vector<StageSpec> specs;
  std::vector<Stage> stages;
  std::vector<Part> parts;
  struct Where {
    std::size_t part = 0, index = 0;  ///< index: into the part's shares
  };
  std::vector<std::vector<Where>> where;  ///< [stage][section]
  std::vector<Bytes> spread;              ///< per device of the session: weights whose rows are spread, of all its stages
  std::vector<std::vector<int>>
      generation;  ///< [stage][section]: of the arena it is bound in; -1: of none. Last: of its spread rows

  /// Of the first device, where all of it runs on one.
  const RequestPlan& plan() const { return parts[0].plan; }
  Bytes backend() const { return parts[0].backend; }
  const Part& part(std::size_t stage, std::size_t section = 0) const { return parts[where[stage][section].part]; }
  const StagePlacement& placement(std::size_t stage, std::size_t section = 0) const {
    return part(stage, section).placed.stages[where[stage][section].index];
  }
};

/// Runs stages of a weight store's components, each block on its device: deals the blocks of components that may be on several
/// out to them, keeps plans by shapes and budget, holds the devices while a request runs. Several sessions share devices and
/// store; closing one returns every byte that only it used. Threads: one. After any error the ledgers hold what they held
/// before the request, and the next request works.
class Session {
 public:
  /// `memories`: one per device of the store, in its order. All outlive the session.
  Session(std::vector<DeviceMemory*> memories, WeightStore& store, SessionOptions options);
  ~Session();

  /// Builds (or finds) graphs and plans for these stages; nothing is allocated on a device. Blocks are dealt out anew where
  /// budgets changed or no plan fits as they are, unless their component is in use.
  /// Errors: over_budget with needed = the smallest budget (backend included) of the device `refused_on` and available = its
  /// budget; where several devices share the work, with the others' budgets as they are (the message says so where another
  /// device has to get more as well, and there is no number where no single budget would do for a stage); where rows are spread
  /// over devices in proportion to their budgets, that number allows for the larger share it brings. unsupported where no
  /// device of a component can run one of its blocks.
  Result<Prepared*> prepare(const std::vector<StageSpec>& specs);
  /// What the device that was to have this block lacks for it, in words; empty where nothing was in the way.
  std::string why_elsewhere(BlockId block) const;
  /// The device that the last refusal of `prepare` for want of budget speaks of.
  std::size_t refused_on() const { return refused_on_; }
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
  /// Looks whether the backends hold more than was planned, now that the request's graphs have run once. If so it is said, and
  /// `prepared` may be outdated.
  void check_backends(const Prepared& prepared) const;
  /// SessionOptions::follow.
  Status follow() const { return options_.follow ? options_.follow() : Status{}; }

  /// Forgets plans and caches, not device copies. Not while a request runs.
  void forget_plans();
  /// Gives up every device copy of the session's components, its plans and caches. Not while a request runs.
  void release();
  /// Forgets plans and copies of a component and puts it on that device alone. Errors: those of WeightStore::place.
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
  std::vector<Site> sites(const Prepared* prepared) const;
  Result<std::unique_ptr<Prepared>> plan_anew(const std::vector<StageSpec>& specs);
  std::optional<Bytes> budget_of(std::size_t device) const;
  // Weights whose rows lie spread over several devices (session_rows.cpp).
  std::vector<ComponentId> components_with_rows(const std::vector<StageSpec>& specs, bool loaded) const;
  /// Per device: what such weights of these stages take there; `pending`: only of those that are not loaded yet.
  std::vector<Bytes> spread_bytes(const std::vector<StageSpec>& specs, bool pending) const;
  /// Shares by budget, for those that are not loaded.
  Status share_rows(const std::vector<StageSpec>& specs);
  /// The devices that hold rows and run nothing: whether their budgets do.
  Status check_holders(const Prepared& prepared);
  Error raise_for_rows(const std::vector<StageSpec>& specs, Error refusal);
  Status load_rows(const std::vector<ComponentId>& components, const CancelToken& cancel);
  // How blocks are dealt out (session_deal.cpp).
  /// What a stage would take and cost on each of some devices.
  struct Survey {
    std::vector<SpreadDevice> devices;
    std::vector<SpreadValue> values;
    std::vector<Bytes> backends;  ///< per device: its backend's account for the most demanding block
  };
  /// A device whose budget does not do.
  struct Lack {
    std::size_t device = 0;
    Bytes needed = 0, budget = 0;
    Bytes missing() const { return needed - budget; }
  };
  /// `backends`: per device, what its backend needs for the most demanding block that runs there, or that might when blocks
  /// were dealt out just now: the number that a refusal names then works whatever the next dealing chooses.
  Result<std::vector<Stage>> build_stages(const std::vector<StageSpec>& specs, std::vector<Bytes>& backends);
  std::vector<std::optional<Bytes>> budgets_of(const std::vector<std::size_t>& devices) const;
  Result<Survey> survey(const StageSpec& spec, const std::vector<std::size_t>& candidates) const;
  /// Nothing where no way of dealing fits; `ways_out`: the devices of which raising one would be enough.
  Result<std::optional<Stage>> deal_out(const StageSpec& spec, const std::vector<std::size_t>& candidates, Survey& survey,
                                        const std::vector<Bytes>& backends, bool alone, std::vector<Lack>& ways_out);
  /// Forgets plans and device copies of blocks that were on other devices before.
  void moved(ComponentId component, const std::vector<std::size_t>& before);
  /// With buffers as large as its objects need.
  Result<Stage> build_stage(const StageSpec& spec) const;
  /// The devices on which a stage does not fit as it is dealt out. `backends`: per device. `alone`: the request has no other.
  std::vector<Lack> lacking(const Stage& stage, const std::vector<Bytes>& backends, bool alone) const;
  tl::unexpected<Error> refuse(const std::vector<std::vector<Lack>>& refusals);

  /// Added to a refusal that raising one budget does not end.
  static constexpr const char* kAnotherToo = ", and another stage does not fit another device";
  Status divide(Prepared& prepared);
  Status plan_part(Prepared& prepared, Prepared::Part& part, Bytes backend);
  void measure(const std::vector<StageSpec>& specs, Prepared::Part& part, std::set<BlockId> planned) const;
  void choose_zone(Prepared& prepared, Prepared::Part& part, const std::vector<bool>& skip) const;
  /// Bytes of one buffer where an object is larger than the device prefers; else 0.
  Bytes chunk_for(std::size_t device, Bytes largest) const;
  Status enlarge_buffers(Prepared& prepared);
  std::vector<StageNeed> stage_needs(const Prepared& prepared, const Prepared::Part& part) const;
  DeviceMemory::Need need_of(const Prepared& prepared, const Prepared::Part& part, const std::vector<bool>& skip) const;
  std::vector<WeightPlace> places_of(const Prepared& prepared, std::size_t stage) const;
  Status bind_stage(Prepared& prepared, std::size_t stage);
  void ready(const Stage& stage, std::size_t section);
  bool fixed(BlockId block) const;
  Status reserve_staging(const Prepared& prepared);

  std::vector<DeviceMemory*> memories_;
  WeightStore& store_;
  SessionOptions options_;
  std::vector<Variants> variants_;
  HostCache cache_;
  std::vector<std::unique_ptr<Prepared>> plans_;  // most recently used last
  struct Dealt {
    std::vector<std::optional<Bytes>> budgets;  // in which it was dealt out
    std::vector<std::string> elsewhere;         // per block
  };
  std::map<ComponentId, Dealt> dealt_;
  std::size_t refused_on_ = 0;
  std::vector<Bytes> pending_;  // per device: spread_bytes of the stages that are being planned
  struct WhatIf {
    std::size_t device = 0;
    Bytes budget = 0;
  };
  std::optional<WhatIf> what_if_;          // a budget to plan with instead of the device's own
  std::vector<ComponentId> spread_by_us_;  // rows that this request loaded
  std::vector<DeviceMemory::Turn> turns_;  // while a request runs, as are the holds
  std::vector<WeightStore::Hold> holds_;
  std::vector<std::size_t> running_on_;  // the devices of the stage that runs
  std::size_t staging_on_ = 0;           // whose staging buffer stages on one device use, on whatever device they run
  Lease crossing_lease_;                 // on the store's host ledger; before the memory, so returned after it
  HostPiece crossing_;                   // for values on their way between devices
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
