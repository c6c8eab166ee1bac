#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/cancel.h"
#include "base/named_thread.h"
#include "exec/stage.h"
#include "residency/device_memory.h"

namespace sluice {

/// What a run of sweeps did, on the device's clock.
struct SweepStats {
  Moment start = 0, end = 0;    ///< of the last sweep, in ns
  std::vector<double> sweep_s;  ///< each sweep's length
  std::vector<Bytes> copied;    ///< bytes over the link for each sweep's blocks
  double wait_s = 0;            ///< compute waiting for copies, all sweeps
  Bytes copied_total = 0;
  /// Joins what a later run of the same stage did.
  void append(const SweepStats& later);
};

/// Runs a bound stage: for each section a link thread copies its blocks in the order they are needed, across the end of one
/// sweep into the next; the caller's thread computes all lanes of a block while its weights are there, and before that carries
/// what the block reads from other devices over. Nothing is allocated and no plan is made in here. Lifetime: one per run of a
/// stage; the destructor stops and joins the link threads. Use from one thread.
class SweepRunner {
 public:
  /// What a section's link needs.
  struct Ground {
    DeviceMemory* memory = nullptr;
    std::span<std::byte> staging;  ///< host memory for images put together at each use: at least its largest that needs it
  };
  /// `grounds`: parallel to the stage's sections. `crossing`: host memory for the largest value that crosses between devices.
  /// `sweeps`: how many there will be, so that the last one prefetches nothing.
  SweepRunner(const std::vector<Ground>& grounds, WeightStore& store, Stage& stage, std::span<std::byte> crossing, int sweeps,
              const CancelToken& cancel);
  ~SweepRunner();
  SweepRunner(const SweepRunner&) = delete;
  SweepRunner& operator=(const SweepRunner&) = delete;

  /// Writes a host input of a lane; before the sweep that reads it. `data` is as many bytes as the input's tensor.
  Status write(std::size_t lane, Value input, std::span<const std::byte> data);
  /// Visits every block once. `on_block(done)` is called after each block. Errors: device_failed, io, cancelled, ...
  Status sweep(const std::function<void(int)>& on_block);
  /// Reads an output of a lane; after a sweep and before `finish`.
  Status read(std::size_t lane, Value output, std::span<std::byte> data);
  /// Ends a sweep: the outputs were read, so the next sweep's copies may take their place.
  void finish();

  SweepStats stats() const;
  /// Bytes over the link so far. Cheap: for progress.
  Bytes copied() const;

 private:
  struct Job {
    std::uint32_t block = 0;
    bool resident = false;
    std::int64_t after = 0;  ///< number of blocks, counted over all sweeps, that must have ended
    int sweep = 0;
  };
  /// One section's link. Jobs are made one sweep at a time by its thread; their order is the order of use.
  struct Link {
    Ground ground;
    std::size_t section = 0;
    std::vector<Job> jobs;
    std::size_t next = 0;
    int job_sweep = 0;
    NamedThread thread;
    Device& device() const { return ground.memory->device(); }
  };
  void start(Link& link);
  void link_loop(Link& link);
  std::optional<Job> next_job(Link& link);
  Result<Moment> copy(const Link& link, const Job& job, Moment not_before);
  Status carry_over(std::size_t lane, std::size_t block);
  void fail_with(Error error);

  WeightStore& store_;
  Stage& stage_;
  std::span<std::byte> crossing_;
  const int sweeps_;
  CancelToken cancel_;
  CancelToken stop_copies_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t ended_ = 0;                  ///< blocks ended, over all sweeps
  std::vector<Moment> block_end_;           ///< [2 × blocks], by parity of the sweep
  std::vector<std::int64_t> copied_sweep_;  ///< per block: last sweep whose copy is complete; -1: none
  std::vector<Moment> copy_end_;            ///< per block
  std::vector<bool> loading_;               ///< residents that the first sweep brings; fixed after construction
  bool stopping_ = false;
  std::optional<Error> error_;

  int sweep_ = 0;
  Moment now_ = 0;
  Moment last_end_ = 0;
  bool unfinished_ = false;
  SweepStats stats_;
  std::vector<Link> links_;  // last: joined before anything above goes
};

}  // namespace sluice
