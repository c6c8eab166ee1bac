// Random models on random devices, with everything that can happen to them: the bits of one device, no budget exceeded, honest
// refusals, nothing lost. What a refusal says is compared with every way of dealing the blocks out, each planned by itself.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "exec/planner.h"
#include "pipeline/run_stage.h"
#include "support/faulty_device.h"
#include "support/random_chain.h"

using namespace sluice;
using namespace sluice::test;

namespace {

#ifdef SLUICE_SANITIZED
constexpr unsigned kWorlds = 40;
#else
constexpr unsigned kWorlds = 1200;
#endif
constexpr int kSteps = 8;

enum class Trouble { none, alloc, host, copy, compute, read, cancel, budget };
constexpr const char* kTroubleNames[] = {"none", "alloc", "host", "copy", "compute", "read", "cancel", "budget"};

/// How often each kind of thing happened: a test that never meets it proves nothing.
struct Seen {
  int runs = 0, spread = 0, refusals = 0, numbers = 0, errors = 0, cancelled = 0, replans = 0, unsupported = 0, placed = 0,
      streamed = 0, elsewhere = 0;
};

/// A request: models with lanes and sweeps.
struct Asked {
  std::vector<std::size_t> models;
  std::size_t lanes = 1;
  int sweeps = 1;
};

class World {
 public:
  World(unsigned seed, Seen& seen) : rng_(seed), seen_(seen) {
    const std::size_t devices = 1 + below(4);
    const auto words = RandomChain::operators();
    std::vector<Device*> raw;
    for (std::size_t d = 0; d < devices; ++d) {
      SimOptions sim;
      sim.label = std::string(1, static_cast<char>('a' + d));
      sim.threads = 1;
      sim.link_bytes_per_s = std::pow(10.0, 6 + below(4));
      sim.flops_per_s = std::pow(10.0, 6 + below(4));
      sim.link_latency_s = chance(3) ? 1e-6 : 0;
      sim.backend = chance(3) ? below(4 * KiB) : 0;
      if (chance(3)) sim.preferred_buffer = Bytes{1} << (11 + below(5));
      if (chance(4)) sim.pinned = below(64 * KiB);
      if (chance(5)) sim.late_free_calls = 1 + below(3);
      for (const auto* word : words)
        if (chance(8)) sim.lacks.insert(word);
      auto opened = SimDevice::open(sim);
      REQUIRE(opened);
      const Bytes alignment = chance(3) ? Bytes{64} << below(4) : 0;
      devices_.push_back(std::make_unique<FaultyDevice>(*std::move(opened), faults_, alignment));
      raw.push_back(devices_.back().get());
      note("device {}: backend {}, preferred {}, alignment {}, lacks {}", d, sim.backend, sim.preferred_buffer.value_or(0),
           devices_[d]->info().alignment, fmt::join(sim.lacks, " "));
    }
    tier_ = static_cast<HostTier>(below(3));
    WeightStore::Options options{tier_, std::nullopt, {}};
    options.pinned_budget = 64 * KiB;
    store_ = std::make_unique<WeightStore>(raw, options);
    for (std::size_t d = 0; d < devices; ++d) {
      memories_.push_back(
          std::make_unique<DeviceMemory>(*devices_[d], *store_, DeviceMemory::Options{.budget = {}, .index = d}));
      exceeds_.push_back(false);
    }
    SessionOptions session;
    if (devices > 1 && chance(4)) session.fallback = devices - 1;
    std::vector<DeviceMemory*> pointers;
    for (auto& m : memories_) pointers.push_back(m.get());
    for (auto& s : sessions_) s = std::make_unique<Session>(pointers, *store_, session);
    fallback_ = session.fallback;
    for (std::size_t m = 0; m < kModels; ++m) {
      models_.push_back(std::make_unique<RandomChain>(fmt::format("m{}", m), rng_()));
      std::vector<std::size_t> order(devices);
      for (std::size_t d = 0; d < devices; ++d) order[d] = d;
      std::shuffle(order.begin(), order.end(), rng_);
      if (chance(4)) order.resize(1 + below(static_cast<std::uint32_t>(devices)));
      if (fallback_) {
        std::erase(order, *fallback_);
        order.push_back(*fallback_);
      }
      auto spec = models_[m]->spec(read_, order);
      REQUIRE(spec);
      const auto id = store_->add(std::move(*spec));
      REQUIRE(id);
      components_.push_back(*id);
      largest_ = std::max(largest_, models_[m]->largest_image());
      note("model {}: {} blocks on devices {}: {}", m, models_[m]->model().blocks.size(), fmt::join(order, " "),
           models_[m]->text());
    }
    note("tier {}, fallback {}", static_cast<int>(tier_), fallback_ ? std::to_string(*fallback_) : "none");
    for (std::size_t d = 0; d < devices; ++d)
      if (!chance(4)) set_budget(d, budget());
  }

  void step() {
    const std::size_t s = below(2), d = below(static_cast<std::uint32_t>(devices_.size()));
    switch (below(12)) {
      case 0:
      case 1: set_budget(d, chance(6) ? std::nullopt : std::optional(budget())); break;
      case 2: {
        const std::size_t m = below(kModels);
        note("place(session {}, model {}, device {})", s, m, d);
        const auto placed = sessions_[s]->place(components_[m], d);
        if (!placed) say("place: {}", placed.error().message);
        ++seen_.placed;
        break;
      }
      case 3:
        note("release(session {})", s);
        sessions_[s]->release();
        break;
      case 4:
        note("relieve({})", d);
        memories_[d]->relieve();
        // The backend's own account is not the engine's to give back.
        exceeds_[d] = devices_[d]->ledger().report().total == 0;
        break;
      default: request(s); break;
    }
    check();
  }

  void end() {
    note("end");
    for (auto& s : sessions_) s->release();
    for (auto& m : memories_) m->unload(Leaving::closed);
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      const auto books = devices_[d]->ledger().report();
      if (books.total > 0) say("at the end, device {}: {} bytes", d, books.total);
      if (devices_[d]->live_buffers() > 0) say("at the end, device {}: {} buffers", d, devices_[d]->live_buffers());
    }
    for (auto& s : sessions_) s.reset();
    for (const ComponentId id : components_)
      if (const auto removed = store_->remove(id); !removed) say("at the end: {}", removed.error().message);
    for (auto& m : memories_) m.reset();
    for (std::size_t d = 0; d < devices_.size(); ++d)
      if (const auto backend = devices_[d]->ledger().report().backend; backend > 0)
        say("at the end, device {}: {} of the backend", d, backend);
    // The store has a conversion buffer of its own, as large as an image at most, with a cache line to spare.
    if (const auto total = store_->host_ledger().report().total; total > largest_ + 64)
      say("at the end, host: {} bytes", total);
    if (const auto total = store_->pinned_ledger().report().total; total > 0) say("at the end: {} bytes pinned", total);
  }

  const std::vector<std::string>& broken() const { return broken_; }
  std::string story() const { return fmt::format("{}\n", fmt::join(story_, "\n  ")); }

 private:
  static constexpr std::size_t kModels = 2;

  std::uint32_t below(std::uint32_t n) { return n == 0 ? 0 : static_cast<std::uint32_t>(rng_() % n); }
  bool chance(std::uint32_t one_in) { return below(one_in) == 0; }
  Bytes budget() { return chance(10) ? below(4 * KiB) : 3 * KiB + below(chance(2) ? 40 * KiB : 120 * KiB); }
  template <typename... A>
  void say(fmt::format_string<A...> format, A&&... a) {
    broken_.push_back(fmt::format(format, std::forward<A>(a)...));
    note("=> {}", broken_.back());
  }
  template <typename... A>
  void note(fmt::format_string<A...> format, A&&... a) {
    story_.push_back(fmt::format(format, std::forward<A>(a)...));
  }

  void set_budget(std::size_t d, std::optional<Bytes> budget) {
    note("budget({}, {})", d, budget ? std::to_string(*budget) : "none");
    memories_[d]->set_budget(budget);
    const auto books = devices_[d]->ledger().report();
    exceeds_[d] = budget && books.total + books.backend > *budget;
    allowed_[d] = std::max(allowed_[d], budget.value_or(UINT64_MAX));
  }

  std::vector<StageSpec> specs_of(const Asked& asked) const {
    std::vector<StageSpec> specs;
    for (const std::size_t m : asked.models)
      specs.push_back(
          {fmt::format("m{}", m), components_[m], std::vector<LaneShape>(asked.lanes, models_[m]->lane()), asked.sweeps});
    return specs;
  }

  /// What a lane of a model gives when it runs alone on a device without limits.
  const std::vector<LaneOutputs>& alone(std::size_t m) {
    auto& outputs = alone_[m];
    if (!outputs.empty()) return outputs;
    SimOptions sim;
    sim.threads = 1;
    sim.link_bytes_per_s = sim.flops_per_s = 1e9;
    auto device = SimDevice::open(sim);
    REQUIRE(device);
    WeightStore store(**device, {HostTier::disk, std::nullopt, {}});
    auto spec = models_[m]->spec(std::make_shared<Countdown>(), {0});
    REQUIRE(spec);
    const auto id = store.add(std::move(*spec));
    REQUIRE(id);
    DeviceMemory memory(**device, store, {});
    Session session({&memory}, store, {});
    auto prepared = session.prepare({{"alone", *id, std::vector<LaneShape>(3, models_[m]->lane()), 1}});
    REQUIRE_MESSAGE(prepared, prepared.error().message);
    REQUIRE(session.bind(**prepared, CancelToken{}));
    {
      auto runner = session.begin(**prepared, 0, {});
      REQUIRE(runner);
      auto got = sweep_once(**runner, (*prepared)->stages[0], inputs_of(m, 3), true, [](int) {});
      REQUIRE_MESSAGE(got, got.error().message);
      outputs = std::move(*got);
    }
    session.end();
    session.finish(true);
    return outputs;
  }

  std::vector<LaneInputs> inputs_of(std::size_t m, std::size_t lanes) const {
    std::vector<LaneInputs> inputs;
    for (std::size_t l = 0; l < lanes; ++l) inputs.push_back(models_[m]->inputs(l));
    return inputs;
  }

  struct Booked {
    std::vector<Bytes> total;
    std::vector<std::set<BlockId>> loaded;
  };
  Booked books() const {
    Booked now;
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      now.total.push_back(devices_[d]->ledger().report().total);
      now.loaded.emplace_back();
      for (const auto& o : memories_[d]->occupants())
        if (o.loaded) now.loaded[d].insert(o.block);
    }
    return now;
  }

  void request(std::size_t s) {
    Asked asked{{below(kModels)}, 1 + below(3), 1 + static_cast<int>(below(4))};
    if (chance(3)) asked.models.push_back(1 - asked.models[0]);
    const auto trouble = chance(2) ? static_cast<Trouble>(1 + below(7)) : Trouble::none;
    const int n = 1 + static_cast<int>(below(trouble == Trouble::alloc || trouble == Trouble::host ? 2 : 25));
    note("run(session {}, models {}, lanes {}, sweeps {}, {} {})", s, fmt::join(asked.models, " "), asked.lanes, asked.sweeps,
         kTroubleNames[static_cast<int>(trouble)], n);
    Session& session = *sessions_[s];
    const auto specs = specs_of(asked);
    const Booked before = books();
    for (std::size_t d = 0; d < devices_.size(); ++d) allowed_[d] = memories_[d]->budget().value_or(UINT64_MAX);
    std::vector<Bytes> high;
    for (auto& d : devices_) high.push_back(d->sim().high_water());
    const int allocs = faults_->allocs, struck = faults_->struck;
    faults_->token.reset();

    const auto prepared = session.prepare(specs);
    if (faults_->allocs != allocs) say("prepare: something was allocated");
    judge_dealing(session, asked, prepared);
    if (!prepared) {
      after_error(before, "a refusal");
      if (prepared.error().code == Code::unsupported) {
        ++seen_.unsupported;
        return;
      }
      if (prepared.error().code != Code::over_budget) return say("prepare: {}", prepared.error().message);
      return refused(session, specs, prepared.error(), asked);
    }
    switch (trouble) {
      case Trouble::alloc: faults_->alloc.arm(n); break;
      case Trouble::host: faults_->host.arm(n); break;
      case Trouble::copy: faults_->copy.arm(n); break;
      case Trouble::compute: faults_->compute.arm(n); break;
      case Trouble::read: read_->arm(n); break;
      case Trouble::cancel: faults_->cancel.arm(n); break;
      default: break;
    }
    const Status done = run(session, *prepared, asked, trouble);
    const bool read_struck = trouble == Trouble::read && !read_->armed();
    const bool hit = faults_->struck != struck || read_struck, cancelled = faults_->token.cancelled();
    for (Countdown* c : {&faults_->alloc, &faults_->host, &faults_->copy, &faults_->compute, &faults_->cancel, read_.get()})
      c->arm(0);
    faults_->token.reset();
    for (std::size_t d = 0; d < devices_.size(); ++d)
      if (const Bytes top = devices_[d]->sim().high_water(); top > high[d] && top > allowed_[d] && !exceeds_[d])
        say("device {}: a high-water mark of {} in a budget of {}", d, top, allowed_[d]);
    if (done) {
      ++seen_.runs;
      if (hit && (trouble == Trouble::compute || trouble == Trouble::read) && lost_free()) say("an error was lost");
      return;
    }
    const Error& error = done.error();
    cancelled ? ++seen_.cancelled : ++seen_.errors;
    const bool fitting =
        (hit && error.code == Code::device_oom && (trouble == Trouble::alloc || trouble == Trouble::host)) ||
        (hit && error.code == Code::device_failed && (trouble == Trouble::copy || trouble == Trouble::compute)) ||
        (hit && error.code == Code::io && trouble == Trouble::read) || (cancelled && error.code == Code::cancelled);
    if (!fitting) say("{}: \"{}\"", code_name(error.code), error.message);
    if (trouble != Trouble::budget) after_error(before, "the error");
    // The next request works.
    const auto again = session.prepare(specs);
    if (!again) return say("after an error the next request is refused: {}", again.error().message);
    if (const Status next = run(session, *again, asked, Trouble::none); !next)
      say("after an error the next request fails: {}", next.error().message);
  }

  // A copy that fails on its way to another place on the same device gives the block up, and the request goes on.
  static bool lost_free() { return true; }

  void after_error(const Booked& before, const char* what) {
    const Booked after = books();
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      if (after.total[d] > before.total[d])
        say("after {}, device {}: {} bytes booked, {} before", what, d, after.total[d], before.total[d]);
      for (const BlockId id : after.loaded[d])
        if (!before.loaded[d].contains(id)) say("after {}, device {}: block {} is there, and was not", what, d, id.block);
    }
  }

  Status run(Session& session, Prepared* prepared, const Asked& asked, Trouble trouble) {
    auto done = run_bound(session, prepared, asked, trouble);
    session.finish(done.has_value());
    return done;
  }

  Status run_bound(Session& session, Prepared* prepared, const Asked& asked, Trouble trouble) {
    SLUICE_TRY(session.bind(*prepared, faults_->token));
    for (const auto& part : prepared->parts) {
      const auto books = devices_[part.device]->ledger().report();
      const auto budget = memories_[part.device]->budget();
      if (budget && books.total + books.backend > *budget)
        say("after bind, device {}: {} + {} bytes of {}", part.device, books.total, books.backend, *budget);
      exceeds_[part.device] = false;
    }
    for (std::size_t i = 0; i < asked.models.size(); ++i) {
      bool may_replan = true;
      for (int sweep = 0; sweep < asked.sweeps;) {
        if (sweep > 0) {
          ++seen_.replans;
          std::vector<bool> skip(asked.models.size(), false);
          std::fill_n(skip.begin(), i, true);
          auto another = session.prepare(prepared->specs);
          if (another) {
            SLUICE_TRY(session.bind(**another, faults_->token, skip));
            prepared = *another;
            for (const auto& part : prepared->parts) exceeds_[part.device] = false;
          } else if (another.error().code == Code::over_budget) {
            may_replan = false;  // what is taken is kept
          } else {
            return fail(std::move(another).error());
          }
        }
        SLUICE_TRY(sweeps(session, *prepared, i, asked, trouble, sweep, may_replan));
      }
    }
    return {};
  }

  Status sweeps(Session& session, Prepared& prepared, std::size_t i, const Asked& asked, Trouble trouble, int& sweep,
                bool may_replan) {
    const std::size_t m = asked.models[i];
    const auto inputs = inputs_of(m, asked.lanes);
    const int allocs = faults_->allocs;
    SLUICE_ASSIGN(auto runner, session.begin(prepared, i, faults_->token, asked.sweeps - sweep));
    const Stage& stage = prepared.stages[i];
    if (stage.sections().size() > 1) ++seen_.spread;
    bool early = false;
    for (bool first = true; sweep < asked.sweeps; ++sweep, first = false) {
      if (!first && trouble == Trouble::budget) {
        const std::size_t d = below(static_cast<std::uint32_t>(devices_.size()));
        set_budget(d, chance(6) ? std::nullopt : std::optional(budget()));
      }
      if (!first && may_replan && session.outdated(prepared)) {
        early = true;
        break;
      }
      SLUICE_ASSIGN(const auto outputs, sweep_once(*runner, stage, inputs, first, [](int) {}));
      for (std::size_t l = 0; l < asked.lanes; ++l)
        if (outputs[l] != alone(m)[l]) say("model {}, lane {}: not the bits of a run alone", m, l);
    }
    if (faults_->allocs != allocs) say("stage: something was allocated");
    Bytes planned = 0;
    for (std::size_t k = 0; k < stage.sections().size(); ++k) planned += prepared.placement(i, k).plan.bytes_per_sweep;
    if (planned > 0) ++seen_.streamed;
    const auto stats = runner->stats();
    if (!early && stats.copied.size() > 1 && stats.copied.back() != planned)
      say("{} bytes copied by the last sweep, {} planned", stats.copied.back(), planned);
    runner.reset();
    session.end();
    return {};
  }

  /// What the devices that a block may be on need for a way of dealing a single stage out, by the planner alone.
  struct Way {
    std::vector<std::size_t> lacking;
    Bytes needed = 0;  ///< of the only one that lacks
  };

  /// Every way: consecutive runs along the list, a block that its device cannot run on the nearest that can. Empty: none.
  std::vector<Way> all_ways(const StageSpec& spec, std::size_t m) {
    const auto candidates = store_->devices_of(spec.component);
    std::vector<std::size_t> dealt = candidates;
    if (fallback_) std::erase(dealt, *fallback_);
    if (dealt.empty()) dealt = candidates;
    const std::size_t blocks = models_[m]->model().blocks.size();
    std::vector<Device*> raw;
    std::vector<Variants> variants;
    std::vector<Site> sites;
    for (auto& d : devices_) raw.push_back(d.get());
    for (std::size_t d = 0; d < raw.size(); ++d) variants.push_back(sessions_[0]->variants(d));
    for (std::size_t d = 0; d < raw.size(); ++d) sites.push_back({raw[d], &variants[d], 0});
    WeightStore shadow(raw, {HostTier::disk, std::nullopt, {}});
    auto with = models_[m]->spec(std::make_shared<Countdown>(), candidates);
    REQUIRE(with);
    const auto id = shadow.add(std::move(*with));
    REQUIRE(id);
    StageSpec own = spec;
    own.component = *id;
    std::vector<Bytes> aside(raw.size(), 0);
    std::vector<std::vector<bool>> able(raw.size(), std::vector<bool>(blocks, false));
    for (const std::size_t d : candidates) {
      std::vector<BlockLayout> layouts;
      for (std::uint32_t b = 0; b < blocks; ++b) layouts.push_back(shadow.layout_on({*id, b}, d));
      auto lane = build_lane(
          models_[m]->model(), spec.lanes[0], [&](std::size_t b) -> const BlockLayout& { return layouts[b]; },
          [&](std::size_t) -> const Site& { return sites[d]; });
      REQUIRE(lane);
      std::vector<ggml_cgraph*> graphs;
      for (std::size_t b = 0; b < blocks; ++b) {
        able[d][b] = lane->unsupported[b].empty();
        if (able[d][b]) graphs.push_back(lane->blocks[b].graph);
      }
      const auto backend = raw[d]->measure_backend(graphs);
      REQUIRE(backend);
      aside[d] = memories_[d]->set_aside(*backend, {});
    }
    std::set<std::vector<std::size_t>> deals;
    std::vector<std::size_t> runs(blocks, 0);
    const std::function<void(std::size_t, std::size_t)> choose = [&](std::size_t b, std::size_t run) {
      if (b < blocks) {
        for (std::size_t r = run; r < dealt.size(); ++r) {
          runs[b] = r;
          choose(b + 1, r);
        }
        return;
      }
      std::vector<std::size_t> deal;
      for (std::size_t k = 0; k < blocks; ++k) {
        std::optional<std::size_t> on;
        for (std::size_t distance = 0; distance < dealt.size() && !on; ++distance)
          for (const std::ptrdiff_t sign : {-1, 1}) {
            const auto at = static_cast<std::ptrdiff_t>(runs[k]) + sign * static_cast<std::ptrdiff_t>(distance);
            if (!on && at >= 0 && at < static_cast<std::ptrdiff_t>(dealt.size()) &&
                able[dealt[static_cast<std::size_t>(at)]][k])
              on = dealt[static_cast<std::size_t>(at)];
          }
        if (!on && fallback_ && able[*fallback_][k]) on = fallback_;
        if (!on) return;
        deal.push_back(*on);
      }
      deals.insert(deal);
    };
    choose(0, 0);
    std::vector<Way> ways;
    all_known_ = true;
    for (const auto& deal : deals) {
      REQUIRE(shadow.assign(*id, deal));
      auto stage = Stage::build(own, shadow, sites);
      REQUIRE_MESSAGE(stage, stage.error().message);
      Way way;
      bool known = true;
      for (std::size_t k = 0; k < stage->sections().size(); ++k) {
        const std::size_t d = stage->sections()[k].device;
        const auto budget = memories_[d]->budget();
        if (!budget) continue;
        auto planner = StagePlanner::open(stage->cost(k));
        if (!planner) {
          known = false;  // an object larger than a buffer
          continue;
        }
        Bytes smallest = planner->smallest();
        if (const auto all = planner->plan(UINT64_MAX, {.policy = Policy::all_resident}))
          smallest = std::min(smallest, all->transient + all->resident_bytes);
        if (smallest + aside[d] <= *budget) continue;
        way.lacking.push_back(d);
        way.needed = smallest + aside[d];
      }
      if (known)
        ways.push_back(way);
      else
        all_known_ = false;
    }
    return ways;
  }

  void judge_dealing(Session& session, const Asked& asked, const Result<Prepared*>& prepared) {
    if (prepared) {
      for (const auto& stage : (*prepared)->stages)
        for (std::uint32_t b = 0; b < stage.blocks(); ++b)
          if (!session.why_elsewhere({stage.spec().component, b}).empty()) ++seen_.elsewhere;
      return;
    }
    if (asked.models.size() > 1) return;
    const auto ways = all_ways(specs_of(asked)[0], asked.models[0]);
    if (prepared.error().code == Code::unsupported) {
      if (!ways.empty() || !all_known_) say("unsupported, though there are {} ways: {}", ways.size(), prepared.error().message);
      return;
    }
    std::optional<Bytes> least;
    for (const Way& way : ways) {
      if (way.lacking.empty()) return say("refused, though it fits: {}", prepared.error().message);
      if (way.lacking.size() == 1 && way.lacking[0] == session.refused_on() && (!least || way.needed < *least))
        least = way.needed;
    }
    const Bytes needed = prepared.error().needed;
    if (least && needed > 0 && (all_known_ ? needed != *least : needed > *least))
      say("refused for {} bytes on device {}, where {} do", prepared.error().needed, session.refused_on(), *least);
  }

  // The number that a refusal names works, and one byte less does not, with the other devices as they are.
  void refused(Session& session, const std::vector<StageSpec>& specs, const Error& error, const Asked& asked) {
    ++seen_.refusals;
    note("refused: {} ({} of {} on {})", error.message, error.needed, error.available, session.refused_on());
    if (error.needed == 0) {  // no single budget is a way out
      if (error.message.find("more than one of the budgets") == std::string::npos)
        say("refused without a number: {}", error.message);
      return;
    }
    const std::size_t d = session.refused_on();
    const auto budget = memories_[d]->budget();
    if (!budget || error.needed <= *budget || error.available != *budget)
      return say("device {} with a budget of {}: {} are needed of {}: {}", d, budget.value_or(0), error.needed, error.available,
                 error.message);
    ++seen_.numbers;
    set_budget(d, error.needed - 1);
    if (session.prepare(specs)) say("{} were said to be needed, and a byte less works", error.needed);
    set_budget(d, error.needed);
    const auto prepared = session.prepare(specs);
    if (!prepared && error.message.find("another stage") != std::string::npos) {
      if (prepared.error().code != Code::over_budget || (prepared.error().needed > 0 && session.refused_on() == d))
        say("another stage was said to need another device: {}", prepared.error().message);
    } else if (!prepared && asked.models.size() > 1 && session.refused_on() == d && prepared.error().needed > error.needed &&
               devices_[d]->info().max_buffer < GiB) {
      // Stages that share buffers larger than the device prefers pack a little otherwise than each by itself: then it takes a
      // second number, which works.
      set_budget(d, prepared.error().needed);
      if (const auto second = session.prepare(specs); !second) say("a second number does not work: {}", second.error().message);
    } else if (!prepared) {
      say("{} were said to be needed on device {}, and do not work: {} ({} of {} on {})", error.needed, d,
          prepared.error().message, prepared.error().needed, prepared.error().available, session.refused_on());
    } else if (const Status done = run(session, *prepared, asked, Trouble::none); !done) {
      say("{} were said to be needed, and it fails: {}", error.needed, done.error().message);
    }
    set_budget(d, budget);
  }

  void check() {
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      const auto books = devices_[d]->ledger().report();
      Bytes live = 0;
      for (const auto& event : devices_[d]->sim().log()) {
        if (!event.ok) continue;
        if (event.kind == SimEvent::Kind::alloc) live += event.bytes;
        if (event.kind == SimEvent::Kind::free) live -= event.bytes;
      }
      if (live != books.total) say("device {}: {} bytes booked, {} alive", d, books.total, live);
      if (memories_[d]->arena().size() != books.total) say("device {}: {} booked, arena {}", d, books.total, live);
      const auto budget = memories_[d]->budget();
      if (budget && books.total + books.backend > *budget && !exceeds_[d])
        say("device {}: {} + {} bytes taken of {}", d, books.total, books.backend, *budget);
      for (const auto& o : memories_[d]->occupants())
        if (!o.cache && store_->device_of(o.block) != d) say("device {}: block {} does not belong there", d, o.block.block);
    }
  }

  std::mt19937 rng_;
  Seen& seen_;
  HostTier tier_ = HostTier::mapped;
  std::optional<std::size_t> fallback_;
  Bytes largest_ = 0;
  std::shared_ptr<FaultSwitches> faults_ = std::make_shared<FaultSwitches>();
  std::shared_ptr<Countdown> read_ = std::make_shared<Countdown>();
  std::vector<std::unique_ptr<RandomChain>> models_;
  std::vector<std::unique_ptr<FaultyDevice>> devices_;
  std::unique_ptr<WeightStore> store_;
  std::vector<std::unique_ptr<DeviceMemory>> memories_;
  std::unique_ptr<Session> sessions_[2];
  std::vector<ComponentId> components_;
  std::map<std::size_t, std::vector<LaneOutputs>> alone_;
  std::vector<bool> exceeds_;             // its budget was cut below what is held, and nobody has run since
  bool all_known_ = true;                 // no object was larger than a buffer, which the planner by itself does not plan
  std::map<std::size_t, Bytes> allowed_;  // the largest budget since the request began
  std::vector<std::string> broken_, story_;
};

}  // namespace

TEST_CASE("random models spread over random devices: the bits of one, no budget exceeded, honest refusals, nothing lost") {
  Seen seen;
  unsigned from = 1, to = kWorlds;
  if (const char* only = std::getenv("SLUICE_SEED")) from = to = static_cast<unsigned>(std::atoi(only));
  std::map<std::string, int> kinds;  // one story of each kind is enough
  for (unsigned seed = from; seed <= to; ++seed) {
    World world(seed, seen);
    for (int i = 0; i < kSteps && world.broken().empty(); ++i) world.step();
    if (world.broken().empty()) world.end();
    if (world.broken().empty()) continue;
    std::string kind;
    for (const char c : world.broken()[0])
      if (c < '0' || c > '9') kind += c;
    if (++kinds[kind] == 1) FAIL_CHECK("seed " << seed << "\n  " << world.story());
  }
  for (const auto& [kind, times] : kinds) MESSAGE(times, " x ", kind);
  MESSAGE(
      fmt::format("{} runs, {} stages spread, {} streamed, {} refusals ({} with a number), {} errors, {} cancelled, {} "
                  "re-planned, {} unsupported, {} placed, {} blocks elsewhere",
                  seen.runs, seen.spread, seen.streamed, seen.refusals, seen.numbers, seen.errors, seen.cancelled, seen.replans,
                  seen.unsupported, seen.placed, seen.elsewhere));
  if (from == to) return;
  const int worlds = static_cast<int>(kWorlds);
  CHECK(seen.runs > worlds / 2);
  CHECK(seen.spread > worlds / 4);
  CHECK(seen.streamed > worlds / 4);
  CHECK(seen.numbers > worlds / 8);
  CHECK(seen.errors > worlds / 8);
  CHECK(seen.cancelled > worlds / 40);
  CHECK(seen.replans > worlds / 20);
  CHECK(seen.unsupported > worlds / 100);
  CHECK(seen.placed > worlds / 4);
  CHECK(seen.elsewhere > worlds / 10);
}
