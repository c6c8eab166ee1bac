#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/request_plan.h"
#include "exec/sweep.h"

namespace sluice {

/// What a session plans within.
struct SessionOptions {
  std::optional<Bytes> budget;  ///< device bytes, backend account included; none: unlimited
  PlanOptions plan;
  std::optional<Variants> variants;  ///< none: the device's own table
  LogSink log;
};

/// A request's stages with their graphs and plan; what `plan` prints and `begin` runs.
struct Prepared {
  std::vector<StageSpec> specs;
  std::vector<Stage> stages;
  RequestPlan plan;
  Bytes backend = 0;                     ///< measured, margin included
  Bytes arena_seen = 0;                  ///< arena size the stages are bound in; 0: not bound
  std::vector<WeightStore::Hold> holds;  ///< the components whose tensors the graphs refer to stay registered
};

/// Runs stages of one weight store on one device: owns the arena, keeps plans by shapes, makes room between stages. Several
/// sessions may share a device's ledger, each with a budget of its own that the others do not change.
/// Threads: one. After any error the ledger holds what it held before the request (arena and residents), and the next request
/// works.
class Session {
 public:
  Session(Device& device, WeightStore& store, SessionOptions options);
  ~Session();

  /// Builds (or finds) graphs and plan for these stages; nothing is allocated on the device.
  /// Errors: over_budget with needed = the smallest budget (backend included) and available = the budget.
  Result<Prepared*> prepare(const std::vector<StageSpec>& specs);
  /// Allocates the arena if need be and binds every stage: all memory of the request is there before its first step.
  Status bind(Prepared& prepared);
  /// Makes room for a stage of a bound request and gives its runner. The runner must go before the next `begin`.
  Result<std::unique_ptr<SweepRunner>> begin(Prepared& prepared, std::size_t stage, const CancelToken& cancel);
  /// Ends a stage: its lent bytes go back to the arena.
  void end();

  /// Gives up every device copy and the arena: the ledger reads zero.
  void release();

  struct Counters {
    int plans_built = 0;
    int arenas_opened = 0;
    Bytes given_up = 0;
  };
  Counters counters() const { return counters_; }
  const SessionOptions& options() const { return options_; }
  /// Device bytes that the session has taken and may use again: its arena and what its backend took; 0 without an arena.
  Bytes held() const { return arena_ ? arena_->size() + share_.backend() : 0; }
  /// The operator variants every graph is built with.
  const Variants& variants() const { return variants_; }
  /// A new budget applies from the next `prepare` on; cached plans for other budgets are forgotten.
  void set_budget(std::optional<Bytes> budget);

 private:
  void for_each_block(const std::function<void(BlockId)>& visit) const;
  void lend(const Prepared& prepared, std::size_t stage);

  Device& device_;
  WeightStore& store_;
  SessionOptions options_;
  Variants variants_;
  Share share_;  // of the device's ledger
  std::optional<Arena> arena_;
  std::vector<std::unique_ptr<Prepared>> cache_;  // most recently used last
  std::vector<Lease> lent_;
  Lease staging_lease_;  // on the store's host ledger; before the buffer, so returned after it
  std::unique_ptr<HostBuffer> staging_;
  Counters counters_;
};

}  // namespace sluice
