#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "exec/session.h"
#include "support/faulty_device.h"
#include "support/residency_rules.h"
#include "support/two_block_model.h"

namespace sluice::test {

/// What a sequence of steps starts from.
struct Setup {
  HostTier tier = HostTier::mapped;
  std::optional<Bytes> host_budget;
  Bytes max_buffer = GiB;
  Bytes pinned = 0;  ///< what the device can pin
  std::array<std::optional<Bytes>, 2> budgets;
};

/// What happens in the middle of a run.
enum class Trouble { none, alloc, host, copy, compute, read, cancel, budget, hold };

/// One step of a sequence. What it names may not be there: then it does nothing, so that any step can be left out.
struct Step {
  enum class Op {
    add,
    remove,
    run,
    admit,
    hold,
    unhold,
    flag,
    unflag,
    budget,
    relieve,
    place,
    unload,
    demote,
    load,
    add_cache,
    find_cache,
    drop_cache,
    release,
    close,
  };
  Op op = Op::run;
  std::size_t session = 0, device = 0;
  std::vector<std::size_t> models;
  std::uint32_t block = 0;
  std::size_t lanes = 1;
  int sweeps = 1;
  Trouble trouble = Trouble::none;
  int n = 1;                  ///< the n-th operation, or the sweep before which the trouble comes
  std::optional<Bytes> size;  ///< of a cache; a budget (none: unlimited)
};

/// As one would write it.
std::string describe(const Setup& setup);
std::string describe(const Step& step);

/// A store, two simulated devices and two sessions, with what is true of them kept on the side. Deterministic but for what the
/// threads of a sweep interleave.
class World {
 public:
  explicit World(const Setup& setup);
  ~World();

  /// Does one step and returns every rule it broke.
  std::vector<std::string> apply(const Step& step);
  /// Lets go of everything and returns what was left.
  std::vector<std::string> end();

  static constexpr std::size_t kModels = 3, kDevices = 2, kSessions = 2;
  /// How often each kind of thing happened: a test that never meets it proves nothing.
  struct Seen {
    std::uint64_t runs = 0, refusals = 0, errors = 0, cancelled = 0, replans = 0, given_up = 0, demoted = 0, caches = 0,
                  loaded = 0, placed = 0, alone = 0;
  };
  Seen seen;

 private:
  struct Cache {
    std::size_t device = 0;
    BlockId key;
    Bytes size = 0;
    std::byte pattern{};
    bool there = true;
    int used = 0;
  };
  template <typename... A>
  void say(fmt::format_string<A...> format, A&&... a) {
    broken_.push_back(fmt::format(format, std::forward<A>(a)...));
  }
  Device& device(std::size_t d) { return *devices_[d]; }
  DeviceMemory& memory(std::size_t d) { return *memories_[d]; }
  DeviceState state(std::size_t d);
  bool fixed(BlockId id) const { return flags_.contains(id) || store_->held(id); }
  std::optional<std::size_t> model_of(ComponentId component) const;
  Session& session(std::size_t s);
  /// Does something and judges the moves it made on each device. `asked`: none where nothing may leave shelves.
  void phase(const char* name, const std::function<void()>& act, const std::vector<std::optional<Asked>>& asked);
  void quiet(const char* name, const std::function<void()>& act);
  void note_losses();
  void run(const Step& step);
  /// Sweeps from number `sweep` on until the last, or until the budget is another.
  Status run_sweeps(Session& s, Prepared& prepared, std::size_t stage, const Step& step, int& sweep, bool may_replan);
  Status run_stage(Session& s, Prepared*& prepared, std::size_t stage, const Step& step);
  Status bind(Session& s, Prepared& prepared, const std::vector<bool>& skip);
  std::vector<std::optional<Asked>> asked_of(const Prepared& prepared, const std::vector<bool>& skip,
                                             bool placed = false) const;
  Bytes host_needed(const std::vector<StageSpec>& specs) const;
  void refused(Session& s, const std::vector<StageSpec>& specs, const Error& error);
  void forget_session(std::size_t s, bool close);
  void check();
  void check_contents(std::size_t d, const DeviceMemory::Occupant& occupant);

  const Setup setup_;
  std::shared_ptr<FaultSwitches> faults_ = std::make_shared<FaultSwitches>();
  std::shared_ptr<Countdown> read_ = std::make_shared<Countdown>();
  std::array<std::unique_ptr<FaultyDevice>, kDevices> devices_;
  std::unique_ptr<WeightStore> store_;
  std::array<std::unique_ptr<DeviceMemory>, kDevices> memories_;
  std::array<std::unique_ptr<Session>, kSessions> sessions_;

  // The reference's own books.
  std::array<std::optional<ComponentId>, kModels> components_;
  std::array<std::set<ComponentId>, kSessions> used_by_;
  std::vector<std::pair<BlockId, WeightStore::Hold>> holds_;
  std::set<BlockId> flags_;
  std::vector<Cache> caches_;
  std::map<ComponentId, LastUse> used_;
  std::mutex mutex_;                                   // moves come from link threads, too
  std::array<std::set<BlockId>, kDevices> loaded_;     // by the moves reported
  std::array<std::vector<SeenMove>, kDevices> moves_;  // of the phase
  std::array<bool, kDevices> may_exceed_{};            // its budget was cut below what is held, and nobody has run since
  Bytes conversion_ = 0;                               // the store's own buffer is as large as an image at most, and a little
  int now_ = 0;
  bool lost_ = false;  // something was, on its way to another place, in the request
  std::vector<std::string> broken_;
};

/// The models all worlds know: two, four and three blocks.
const TwoBlockModel& world_model(std::size_t model);

}  // namespace sluice::test
