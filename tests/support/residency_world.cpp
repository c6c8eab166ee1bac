#include "support/residency_world.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "pipeline/run_stage.h"

namespace sluice::test {
namespace {

constexpr const char* kModelNames[] = {"A", "B", "C"};
constexpr const char* kTierNames[] = {"disk", "mapped", "read"};
constexpr const char* kTroubleNames[] = {"none", "alloc", "host", "copy", "compute", "read", "cancel", "budget", "hold"};

SimOptions sim_options(const Setup& setup) {
  SimOptions sim;
  sim.threads = 1;
  sim.link_bytes_per_s = 1e9;  // given, so that nothing is measured
  sim.flops_per_s = 1e9;
  sim.max_buffer = setup.max_buffer;
  sim.pinned = setup.pinned;
  return sim;
}

std::vector<StageSpec> specs_of(const std::vector<std::pair<std::size_t, ComponentId>>& models, std::size_t lanes, int sweeps) {
  std::vector<StageSpec> specs;
  for (const auto& [model, component] : models) {
    const auto shape = world_model(model).input_shape();
    specs.push_back(
        {kModelNames[model], component, std::vector<LaneShape>(lanes, lane_shape({{shape[0], shape[1], 1, 1}})), sweeps});
  }
  return specs;
}

std::vector<LaneInputs> inputs_of(std::size_t model, std::size_t lanes) {
  std::vector<LaneInputs> inputs;
  for (std::size_t l = 0; l < lanes; ++l) inputs.push_back({world_model(model).input(l)});
  return inputs;
}

/// What a lane of a model gives when it runs alone on a device without limits.
const std::vector<float>& alone(std::size_t model, std::size_t lane) {
  static std::array<std::vector<LaneOutputs>, World::kModels> all;
  auto& outputs = all[model];
  if (outputs.empty()) {
    auto device = SimDevice::open(sim_options({}));
    REQUIRE(device);
    WeightStore store(**device, {HostTier::disk, std::nullopt, {}});
    auto spec = world_model(model).spec(std::make_shared<Countdown>());
    REQUIRE(spec);
    const auto id = store.add(std::move(*spec));
    REQUIRE(id);
    DeviceMemory memory(**device, store, {});
    Session session({&memory}, store, {});
    auto prepared = session.prepare(specs_of({{model, *id}}, 2, 1));
    REQUIRE(prepared);
    REQUIRE(session.bind(**prepared, CancelToken{}));
    {
      auto runner = session.begin(**prepared, 0, {});
      REQUIRE(runner);
      auto got = sweep_once(**runner, (*prepared)->stages[0], inputs_of(model, 2), true, [](int) {});
      REQUIRE(got);
      outputs = std::move(*got);
    }
    session.end();
    session.finish(true);
  }
  return outputs[lane][0];
}

std::string size_text(std::optional<Bytes> size) { return size ? std::to_string(*size) : "none"; }

}  // namespace

const TwoBlockModel& world_model(std::size_t model) {
  static const TwoBlockModel models[] = {{"A", 2, 32, 1}, {"B", 4, 32, 2}, {"C", 3, 48, 3}};
  return models[model];
}

std::string describe(const Setup& s) {
  return fmt::format("setup(tier {}, host budget {}, max buffer {}, pinned {}, budgets {} and {})",
                     kTierNames[static_cast<int>(s.tier)], size_text(s.host_budget), s.max_buffer, s.pinned,
                     size_text(s.budgets[0]), size_text(s.budgets[1]));
}

std::string describe(const Step& s) {
  using Op = Step::Op;
  std::string models;
  for (const std::size_t m : s.models) models += kModelNames[m];
  switch (s.op) {
    case Op::add: return fmt::format("add({}, device {})", models, s.device);
    case Op::remove: return fmt::format("remove({})", models);
    case Op::run:
    case Op::admit: {
      std::string text = fmt::format("{}(session {}, {}, lanes {}, sweeps {}", s.op == Op::run ? "run" : "admit", s.session,
                                     models, s.lanes, s.sweeps);
      if (s.trouble == Trouble::budget)
        text += fmt::format("; before sweep {}: budget({}, {})", s.n + 1, s.device, size_text(s.size));
      else if (s.trouble == Trouble::hold)
        text += fmt::format("; before sweep {}: hold block {}", s.n + 1, s.block);
      else if (s.trouble != Trouble::none)
        text += fmt::format("; fault: {} {}", kTroubleNames[static_cast<int>(s.trouble)], s.n);
      return text + ")";
    }
    case Op::hold: return fmt::format("hold({}, {})", models, s.block);
    case Op::unhold: return fmt::format("unhold({})", s.n);
    case Op::flag: return fmt::format("flag({}, {})", models, s.block);
    case Op::unflag: return fmt::format("unflag({}, {})", models, s.block);
    case Op::budget: return fmt::format("budget({}, {})", s.device, size_text(s.size));
    case Op::relieve: return fmt::format("relieve({})", s.device);
    case Op::place: return fmt::format("place(session {}, {}, device {})", s.session, models, s.device);
    case Op::unload: return fmt::format("unload({})", s.device);
    case Op::demote: return fmt::format("demote({}, {})", models, s.block);
    case Op::load: return fmt::format("load({})", models);
    case Op::add_cache: return fmt::format("add_cache({}, {})", s.device, size_text(s.size));
    case Op::find_cache: return fmt::format("find_cache({})", s.n);
    case Op::drop_cache: return fmt::format("drop_cache({})", s.n);
    case Op::release: return fmt::format("release(session {})", s.session);
    case Op::close: return fmt::format("close(session {})", s.session);
  }
  return {};
}

World::World(const Setup& setup) : setup_(setup) {
  std::vector<Device*> devices;
  for (auto& d : devices_) {
    auto sim = SimDevice::open(sim_options(setup));
    REQUIRE(sim);
    d = std::make_unique<FaultyDevice>(std::move(*sim), faults_);
    devices.push_back(d.get());
  }
  WeightStore::Options options{setup.tier, setup.host_budget, {}};
  options.pinned_budget = 2 * setup.pinned;
  store_ = std::make_unique<WeightStore>(devices, options);
  for (std::size_t d = 0; d < kDevices; ++d)
    memories_[d] = std::make_unique<DeviceMemory>(
        *devices_[d], *store_, DeviceMemory::Options{setup.budgets[d], {}, [this, d](const Move& move) {
                                                       const bool copy = move.block.component < kFirstCache &&
                                                                         model_of(move.block.component) &&
                                                                         store_->has_host_copy(move.block);
                                                       const std::lock_guard lock(mutex_);
                                                       moves_[d].push_back({move, copy});
                                                       switch (move.kind) {
                                                         case Move::Kind::loaded:
                                                           ++seen.loaded;
                                                           loaded_[d].insert(move.block);
                                                           break;
                                                         case Move::Kind::given_up:
                                                           ++seen.given_up;
                                                           loaded_[d].erase(move.block);
                                                           break;
                                                         case Move::Kind::demoted:
                                                           ++seen.demoted;
                                                           loaded_[d].erase(move.block);
                                                           break;
                                                         case Move::Kind::cache_dropped:
                                                           ++seen.caches;
                                                           for (auto& cache : caches_)
                                                             if (cache.device == d && cache.key == move.block)
                                                               cache.there = false;
                                                           break;
                                                         default: break;
                                                       }
                                                     }});
}

World::~World() {
  holds_.clear();
  for (auto& s : sessions_) s.reset();
  for (auto& memory : memories_) memory.reset();  // they report to the books
}

Session& World::session(std::size_t s) {
  if (!sessions_[s]) {
    sessions_[s] = std::make_unique<Session>(std::vector<DeviceMemory*>{memories_[0].get(), memories_[1].get()}, *store_,
                                             SessionOptions{});
  }
  return *sessions_[s];
}

std::optional<std::size_t> World::model_of(ComponentId component) const {
  for (std::size_t m = 0; m < kModels; ++m)
    if (components_[m] == component) return m;
  return std::nullopt;
}

DeviceState World::state(std::size_t d) {
  DeviceState state;
  const auto books = device(d).ledger().report();
  state.budget = memory(d).budget();
  state.total = books.total;
  state.backend = books.backend;
  state.zone = memory(d).zone();
  for (const auto& o : memory(d).occupants()) {
    Tenant t{.id = o.block, .size = o.size, .loaded = o.loaded, .cache = o.cache, .in_zone = !Arena::on_shelf(o.at)};
    if (o.cache) {
      const auto found = std::ranges::find_if(caches_, [&](const Cache& c) { return c.device == d && c.key == o.block; });
      if (found != caches_.end()) t.used = {found->used, found->used};
    } else if (model_of(o.block.component)) {
      t.fixed = fixed(o.block);
      t.host_copy = store_->has_host_copy(o.block);
      t.used = used_[o.block.component];
    }
    state.tenants.push_back(t);
  }
  return state;
}

// A copy that fails, or a host budget without room for it, while something is carried to another place on its device: it is
// given up, and the request goes on.
void World::note_losses() {
  for (const auto& moves : moves_)
    for (const auto& [move, copy] : moves) lost_ = lost_ || move.why == Leaving::lost;
}

void World::phase(const char* name, const std::function<void()>& act, const std::vector<std::optional<Asked>>& asked) {
  std::array<DeviceState, kDevices> before;
  for (std::size_t d = 0; d < kDevices; ++d) {
    before[d] = state(d);
    moves_[d].clear();
  }
  const int struck = faults_->struck;
  act();
  note_losses();
  for (std::size_t d = 0; d < kDevices; ++d) {
    if (asked[d]) {
      Asked it = *asked[d];
      it.driver_refused = faults_->struck != struck;
      it.may_lose = it.driver_refused || setup_.host_budget;
      // Host memory may have been taken for the request before the device's: who has a copy is seen when it matters.
      for (auto& t : before[d].tenants) {
        const auto moved = std::ranges::find(moves_[d], t.id, [](const SeenMove& m) { return m.move.block; });
        if (moved != moves_[d].end())
          t.host_copy = moved->host_copy;
        else if (!t.cache && t.host_copy != store_->has_host_copy(t.id))
          it.either.insert(t.id);
      }
      for (const auto& rule : broken_rules(before[d], it, moves_[d])) say("{}, device {}: {}", name, d, rule);
      continue;
    }
    for (const auto& [move, copy] : moves_[d]) {
      if (move.kind == Move::Kind::loaded) continue;
      const Tenant* t = before[d].find(move.block);
      // A stage that works where residents of the zone lie takes their places; everything else stays.
      const bool brought = std::ranges::any_of(moves_[d], [&, id = move.block](const SeenMove& m) {
        return m.move.kind == Move::Kind::loaded && m.move.block == id;
      });
      if (t ? !t->in_zone || t->fixed : !brought) say("{}, device {}: {} left", name, d, name_of(move.block));
    }
  }
}

void World::quiet(const char* name, const std::function<void()>& act) {
  const int allocs = faults_->allocs;
  for (auto& moves : moves_) moves.clear();
  act();
  for (std::size_t d = 0; d < kDevices; ++d)
    if (!moves_[d].empty()) say("{}, device {}: {} moved", name, d, name_of(moves_[d][0].move.block));
  if (faults_->allocs != allocs) say("{}: something was allocated", name);
}

std::vector<std::optional<Asked>> World::asked_of(const Prepared& prepared, const std::vector<bool>& skip, bool placed) const {
  std::vector<std::optional<Asked>> all(kDevices);
  for (const auto& part : prepared.parts) {
    const RequestPlan& plan = placed ? part.placed : part.plan;
    Asked asked{.zone = plan.zone, .workspace = plan.workspace(), .backend = part.backend};
    for (const BlockId id : part.fixed) asked.wanted[id] = store_->layout(id).size;
    for (std::size_t i = 0; i < part.shares.size(); ++i) {
      const std::size_t stage = part.shares[i].stage;
      const ComponentId component = prepared.specs[stage].component;
      asked.own.insert(component);
      for (std::uint32_t b = 0; b < plan.stages[i].places.size(); ++b) {
        const auto& place = plan.stages[i].places[b];
        if (place.kind != WeightPlace::Kind::resident) continue;
        const BlockId id{component, b};
        if (!skip.empty() && skip[stage])
          asked.either.insert(id);
        else if (place.any_shelf())
          asked.wanted[id] = store_->layout(id).size;
        else
          asked.in_zone.insert(id);
      }
    }
    all[part.device] = asked;
  }
  return all;
}

Status World::bind(Session& s, Prepared& prepared, const std::vector<bool>& skip) {
  Status bound;
  const auto asked = asked_of(prepared, skip);
  phase("bind", [&] { bound = s.bind(prepared, faults_->token, skip); }, asked);
  if (!bound) return bound;
  const auto settled = asked_of(prepared, skip, true);  // as it is bound: it may have settled in a zone that was there
  for (const auto& part : prepared.parts) {
    const auto books = device(part.device).ledger().report();
    const auto budget = memory(part.device).budget();
    if (budget && books.total + books.backend > *budget)
      say("after bind, device {}: {} + {} bytes taken of {}", part.device, books.total, books.backend, *budget);
    may_exceed_[part.device] = false;
    for (const auto& [id, size] : settled[part.device]->wanted)
      if (!memory(part.device).place(id)) say("after bind: {} has no place", name_of(id));
  }
  return {};
}

// The least host memory with which a request can do: a place for its largest image, beside what others keep.
Bytes World::host_needed(const std::vector<StageSpec>& specs) const {
  Bytes needed = conversion_;
  std::array<Bytes, kDevices> staging{};
  for (std::size_t d = 0; d < kDevices; ++d) staging[d] = memories_[d]->staging().size();
  std::set<ComponentId> own, others;
  for (const auto& spec : specs) {
    own.insert(spec.component);
    Bytes& bytes = staging[store_->device_of(spec.component)];
    bytes = std::max(bytes, world_model(*model_of(spec.component)).block_bytes());
  }
  for (const Bytes bytes : staging) needed += bytes;
  for (const auto& used : used_by_) others.insert(used.begin(), used.end());
  for (const auto& hold : holds_) others.insert(hold.first.component);
  if (setup_.tier == HostTier::read)
    for (const ComponentId c : others)
      if (!own.contains(c)) needed += store_->weight_bytes(c);
  return needed;
}

// The number that a refusal names works, and one byte less does not.
void World::refused(Session& s, const std::vector<StageSpec>& specs, const Error& error) {
  ++seen.refusals;
  const std::size_t d = store_->device_of(specs[0].component);
  for (const auto& spec : specs)
    if (store_->device_of(spec.component) != d) return;
  const auto budget = memory(d).budget();
  if (!budget || error.needed <= *budget) {
    say("refused though {} are needed of {}: {}", error.needed, size_text(budget), error.message);
    return;
  }
  if (error.available != *budget) say("refused with {} available of a budget of {}", error.available, *budget);
  const bool exceeds = may_exceed_[d];
  memory(d).set_budget(error.needed - 1);
  if (s.prepare(specs)) say("{} were said to be needed, and a byte less works", error.needed);
  memory(d).set_budget(error.needed);
  auto prepared = s.prepare(specs);
  if (!prepared) {
    say("{} were said to be needed, and do not work: {}", error.needed, prepared.error().message);
  } else {
    for (const auto& spec : specs) used_[spec.component] = {used_[spec.component].from, ++now_};
    const auto bound = bind(s, **prepared, {});
    if (!bound && !(setup_.host_budget && host_needed(specs) > *setup_.host_budget))
      say("{} were said to be needed, and bind fails: {}", error.needed, bound.error().message);
    s.finish(bound.has_value());
    for (const auto& spec : specs) used_[spec.component] = {bound ? now_ : used_[spec.component].from, now_};
  }
  memory(d).set_budget(budget);
  may_exceed_[d] = exceeds || may_exceed_[d] || prepared;
}

Status World::run_sweeps(Session& s, Prepared& prepared, std::size_t stage, const Step& step, int& sweep, bool may_replan) {
  const std::size_t model = *model_of(prepared.specs[stage].component);
  const auto inputs = inputs_of(model, step.lanes);
  const int allocs = faults_->allocs;
  SLUICE_ASSIGN(auto runner, s.begin(prepared, stage, faults_->token, step.sweeps - sweep));
  for (bool first = true; sweep < step.sweeps; ++sweep, first = false) {
    if (!first && sweep == step.n && step.trouble == Trouble::budget) {
      const auto books = device(step.device).ledger().report();
      memory(step.device).set_budget(step.size);
      if (step.size && books.total + books.backend > *step.size) may_exceed_[step.device] = true;
    }
    if (!first && sweep == step.n && step.trouble == Trouble::hold) {
      const BlockId id{prepared.specs[stage].component, step.block % static_cast<std::uint32_t>(world_model(model).blocks())};
      holds_.emplace_back(id, store_->hold(id));
    }
    if (!first && may_replan && s.outdated(prepared)) break;
    SLUICE_ASSIGN(const auto outputs, sweep_once(*runner, prepared.stages[stage], inputs, first, [](int) {}));
    for (std::size_t l = 0; l < step.lanes; ++l)
      if (outputs[l][0] != alone(model, l)) say("{}, lane {}: not the bits of a run alone", kModelNames[model], l);
  }
  if (faults_->allocs != allocs) say("stage: something was allocated");
  const auto& placement = prepared.placement(stage);
  for (std::uint32_t b = 0; b < placement.places.size(); ++b)
    if (placement.places[b].kind == WeightPlace::Kind::resident &&
        !memory(store_->device_of(prepared.specs[stage].component)).resident({prepared.specs[stage].component, b}))
      say("after the stage: block {} is planned as resident, and is not", b);
  const auto stats = runner->stats();
  // Stopped early, it may have begun with the sweep after.
  if (sweep == step.sweeps && stats.copied.size() > 1 && stats.copied.back() != placement.plan.bytes_per_sweep)
    say("{} bytes copied by the last sweep, {} planned", stats.copied.back(), placement.plan.bytes_per_sweep);
  runner.reset();
  s.end();
  return {};
}

Status World::run_stage(Session& s, Prepared*& prepared, std::size_t stage, const Step& step) {
  const std::vector<std::optional<Asked>> none(kDevices);
  bool may_replan = true;
  for (int sweep = 0; sweep < step.sweeps;) {
    if (sweep > 0) {
      ++seen.replans;
      Result<Prepared*> another;
      quiet("prepare again", [&] { another = s.prepare(prepared->specs); });
      std::vector<bool> skip(prepared->specs.size(), false);
      std::fill_n(skip.begin(), stage, true);
      if (another) {
        SLUICE_TRY(bind(s, **another, skip));
        prepared = *another;
      } else if (another.error().code == Code::over_budget) {
        may_replan = false;  // what is taken is kept
      } else {
        return fail(std::move(another).error());
      }
    }
    Status swept;
    phase("stage", [&] { swept = run_sweeps(s, *prepared, stage, step, sweep, may_replan); }, none);
    SLUICE_TRY(std::move(swept));
  }
  return {};
}

void World::run(const Step& step) {
  std::vector<std::pair<std::size_t, ComponentId>> models;
  for (const std::size_t m : step.models)
    if (components_[m]) models.emplace_back(m, *components_[m]);
  if (models.empty()) return;
  lost_ = false;
  Session& s = session(step.session);
  const auto specs = specs_of(models, step.lanes, step.sweeps);
  std::array<DeviceState, kDevices> before;
  std::array<std::set<BlockId>, kDevices> loaded = loaded_;
  for (std::size_t d = 0; d < kDevices; ++d) before[d] = state(d);
  faults_->token.reset();
  const int struck = faults_->struck;
  switch (step.trouble) {
    case Trouble::alloc: faults_->alloc.arm(step.n); break;
    case Trouble::host: faults_->host.arm(step.n); break;
    case Trouble::copy: faults_->copy.arm(step.n); break;
    case Trouble::compute: faults_->compute.arm(step.n); break;
    case Trouble::read: read_->arm(step.n); break;
    case Trouble::cancel: faults_->cancel.arm(step.n); break;
    default: break;
  }
  for (const auto& spec : specs) used_by_[step.session].insert(spec.component);
  Result<Prepared*> prepared;
  quiet("prepare", [&] { prepared = s.prepare(specs); });
  Status done;
  bool refusal = false;
  if (!prepared) {
    done = fail(prepared.error());
    refusal = prepared.error().code == Code::over_budget;
  } else {
    ++now_;
    for (const auto& spec : specs) used_[spec.component].to = now_;
    Prepared* now = *prepared;
    done = bind(s, *now, {});
    if (done) {
      ++seen.runs;
      for (std::size_t i = 0; done && step.op == Step::Op::run && i < specs.size(); ++i) done = run_stage(s, now, i, step);
      const std::vector<std::optional<Asked>> none(kDevices);
      if (done) phase("finish", [&] { s.finish(true); }, none);
    }
    if (!done) s.finish(false);
    if (done)
      for (const auto& spec : specs) used_[spec.component] = {now_, now_};
  }
  const bool read_struck = step.trouble == Trouble::read && !read_->armed();
  const bool hit = faults_->struck != struck || read_struck;
  const bool cancelled = faults_->token.cancelled();
  faults_->alloc.arm(0);
  faults_->host.arm(0);
  faults_->copy.arm(0);
  faults_->compute.arm(0);
  faults_->cancel.arm(0);
  read_->arm(0);
  faults_->token.reset();
  if (!done) {
    const Error& error = done.error();
    const auto expect = [&](bool ok) {
      if (!ok) say("{} (\"{}\") for trouble: {}", code_name(error.code), error.message, describe(step));
    };
    const bool no_host = prepared && error.code == Code::over_budget && setup_.host_budget;
    // A held block that lies in the zone stays there; who needs its place is refused by name.
    const bool in_the_way =
        prepared && error.code == Code::over_budget && error.message.find("is held where") != std::string::npos &&
        (step.trouble == Trouble::hold || std::ranges::any_of(before, [](const DeviceState& state) {
           return std::ranges::any_of(state.tenants, [](const Tenant& tenant) { return tenant.fixed && tenant.in_zone; });
         }));
    if (in_the_way) return;
    if (refusal || (no_host && host_needed(specs) > *setup_.host_budget)) {
      // A driver that refused once was asked again.
      expect(!hit || step.trouble == Trouble::alloc || step.trouble == Trouble::host);
      if (no_host && error.available != *setup_.host_budget) expect(false);
      if (no_host) return;
    } else {
      cancelled ? ++seen.cancelled : ++seen.errors;
      switch (step.trouble) {
        case Trouble::alloc:
        case Trouble::host: expect(hit && error.code == Code::device_oom); break;
        case Trouble::copy:
        case Trouble::compute: expect(hit && error.code == Code::device_failed); break;
        case Trouble::read: expect(hit && error.code == Code::io); break;
        case Trouble::cancel: expect(cancelled && error.code == Code::cancelled); break;
        default: expect(false); break;
      }
    }
    for (std::size_t d = 0; d < kDevices; ++d) {
      const auto after = device(d).ledger().report();
      // What was held in the zone keeps the place on a shelf that it was carried to.
      const bool held = std::ranges::any_of(before[d].tenants, [](const Tenant& t) { return t.fixed && t.in_zone; });
      if (after.total > before[d].total && !held)
        say("after the error, device {}: {} bytes booked, {} before", d, after.total, before[d].total);
      for (const BlockId id : loaded_[d])
        if (!loaded[d].contains(id) && !fixed(id))
          say("after the error, device {}: {} is there, and was not before", d, name_of(id));
    }
  } else if (hit && !lost_ &&
             (step.trouble == Trouble::copy || step.trouble == Trouble::compute || step.trouble == Trouble::read)) {
    say("an error was lost");
  }
  if (refusal) refused(s, specs, prepared.error());
  if (!done && !refusal) {  // the next request works
    Step again = step;
    again.trouble = Trouble::none;
    const auto retry = s.prepare(specs);
    if (retry) {
      ++now_;
      for (const auto& spec : specs) used_[spec.component].to = now_;
      Prepared* now = *retry;
      Status status = bind(s, *now, {});
      for (std::size_t i = 0; status && i < specs.size(); ++i) status = run_stage(s, now, i, again);
      s.finish(status.has_value());
      if (!status) say("after an error the next request fails: {}", status.error().message);
      if (status)
        for (const auto& spec : specs) used_[spec.component] = {now_, now_};
    } else if (retry.error().code != Code::over_budget) {
      say("after an error the next request is not planned: {}", retry.error().message);
    }
  }
  // Nothing changed: nothing is planned, allocated or moved.
  if (done && step.trouble == Trouble::none && specs.size() == 1 && step.op == Step::Op::run) {
    const int plans = s.counters().plans_built, allocs = faults_->allocs;
    const auto again = s.prepare(specs);
    if (!again) {
      say("the same again is refused: {}", again.error().message);
    } else {
      for (auto& moves : moves_) moves.clear();
      Prepared* now = *again;
      Status status = bind(s, *now, {});
      for (auto& moves : moves_)
        if (!moves.empty()) say("the same again: {} moved", name_of(moves[0].move.block));
      if (status) status = run_stage(s, now, 0, step);
      s.finish(status.has_value());
      if (!status) say("the same again fails: {}", status.error().message);
      if (s.counters().plans_built != plans) say("the same again: planned anew");
      if (faults_->allocs != allocs) say("the same again: something was allocated");
      ++seen.alone;
    }
  }
}

void World::forget_session(std::size_t s, bool close) {
  if (!sessions_[s]) return;
  for (auto& moves : moves_) moves.clear();
  close ? sessions_[s].reset() : sessions_[s]->release();
  for (std::size_t d = 0; d < kDevices; ++d)
    for (const auto& t : state(d).tenants)
      if (!t.cache && !t.fixed && used_by_[s].contains(t.id.component) && !used_by_[1 - s].contains(t.id.component))
        say("{} is still there, and only session {} used it", name_of(t.id), s);
  used_by_[s].clear();
}

std::vector<std::string> World::apply(const Step& step) {
  using Op = Step::Op;
  broken_.clear();
  const std::size_t m = step.models.empty() ? 0 : step.models[0];
  const auto component = components_[m];
  const BlockId block{component.value_or(0), step.block % static_cast<std::uint32_t>(world_model(m).blocks())};
  Cache* cache = caches_.empty() ? nullptr : &caches_[static_cast<std::size_t>(step.n) % caches_.size()];
  switch (step.op) {
    case Op::add: {
      if (component) break;
      auto spec = world_model(m).spec(read_, step.device);
      REQUIRE(spec);
      const auto id = store_->add(std::move(*spec));
      conversion_ = std::max(conversion_, world_model(m).block_bytes() + 64);
      if (id)
        components_[m] = *id;
      else if (id.error().code != Code::over_budget || !setup_.host_budget)
        say("add: {}", id.error().message);
      break;
    }
    case Op::remove: {
      if (!component) break;
      const bool in_use = store_->in_use(*component);
      // A session refers to what it was asked for until `release`, in use or not: to remove that would be the caller's bug.
      if (!in_use && std::ranges::any_of(used_by_, [&](const auto& used) { return used.contains(*component); })) break;
      if (!in_use) {
        for (auto& memory : memories_) memory->forget(*component);
        for (auto i = flags_.begin(); i != flags_.end();) i = i->component == *component ? flags_.erase(i) : std::next(i);
      }
      const auto removed = store_->remove(*component);
      if (removed.has_value() == in_use) say("remove: {}", removed ? "though in use" : removed.error().message);
      if (removed) {
        components_[m].reset();
        for (auto& used : used_by_) used.erase(*component);
      }
      break;
    }
    case Op::run:
    case Op::admit: run(step); break;
    case Op::hold:
      if (component) quiet("hold", [&] { holds_.emplace_back(block, store_->hold(block)); });
      break;
    case Op::unhold:
      if (!holds_.empty())
        quiet("unhold", [&] { holds_.erase(holds_.begin() + step.n % static_cast<std::ptrdiff_t>(holds_.size())); });
      break;
    case Op::flag:
      if (!component) break;
      quiet("flag", [&] { store_->set_flag(block, BlockFlag::merged); });
      flags_.insert(block);
      break;
    case Op::unflag:
      if (!component) break;
      store_->set_flag(block, BlockFlag::merged, false);
      flags_.erase(block);
      break;
    case Op::budget: {
      quiet("budget", [&] { memory(step.device).set_budget(step.size); });
      const auto books = device(step.device).ledger().report();
      may_exceed_[step.device] = step.size && books.total + books.backend > *step.size;
      break;
    }
    case Op::relieve: {
      std::vector<std::optional<Asked>> asked(kDevices);
      asked[step.device] = Asked{.backend = device(step.device).ledger().report().backend};
      phase("relieve", [&] { memory(step.device).relieve(); }, asked);
      const auto after = state(step.device);
      const bool stuck = std::ranges::any_of(after.tenants, [](const Tenant& t) { return t.fixed; });
      if (after.budget && after.total + after.backend > *after.budget) {
        if (!stuck && after.total > 0)
          say("after relieve: {} + {} bytes taken of {}", after.total, after.backend, *after.budget);
      } else {
        may_exceed_[step.device] = false;
      }
      break;
    }
    case Op::place: {
      if (!component) break;
      Session& s = session(step.session);
      const std::size_t from = store_->device_of(*component);
      const bool flagged = std::ranges::any_of(flags_, [&](BlockId id) { return id.component == *component; });
      const bool held = std::ranges::any_of(holds_, [&](const auto& h) { return h.first.component == *component; });
      const auto placed = s.place(*component, step.device);
      if (placed) {
        ++seen.placed;
        if (from != step.device && (flagged || held)) say("place: moved though flagged or held");
        if (store_->device_of(*component) != step.device) say("place: not there");
        if (from != step.device)
          for (const auto& t : state(from).tenants)
            if (t.id.component == *component) say("place: {} is still on the old device", name_of(t.id));
      } else {
        if (placed.error().code != Code::invalid_argument) say("place: {}", placed.error().message);
        if (store_->device_of(*component) != from) say("place: failed, and moved");
        if (!flagged && !held && !used_by_[1 - step.session].contains(*component)) say("place: {}", placed.error().message);
      }
      break;
    }
    case Op::unload: {
      memory(step.device).unload(Leaving::idle);
      store_->demote_idle();
      const auto after = state(step.device);
      for (const auto& t : after.tenants)
        if (!t.fixed) say("unload: {} is still there", name_of(t.id));
      if (after.tenants.empty() && after.total > 0) say("unload: {} bytes are left", after.total);
      break;
    }
    case Op::demote:
      if (!component) break;
      quiet("demote", [&] {
        const bool pinned = fixed(block);
        const Bytes freed = store_->demote(block);
        if (pinned && freed > 0) say("demote: {} though held or flagged", name_of(block));
      });
      break;
    case Op::load: {
      if (!component) break;
      const bool in_use = store_->in_use(*component);
      quiet("load", [&] {
        const auto loaded = store_->load(*component, {}, {});
        if (!loaded && !(in_use && loaded.error().code == Code::invalid_argument)) say("load: {}", loaded.error().message);
      });
      break;
    }
    case Op::add_cache: {
      const auto before = state(step.device);
      for (auto& moves : moves_) moves.clear();
      const Bytes size = step.size.value_or(256);
      const auto key = memory(step.device).add_cache(size);
      for (const auto& [move, copy] : moves_[step.device])
        if (move.kind != Move::Kind::cache_dropped) say("add_cache: {} left for it", name_of(move.block));
      if (key) {
        caches_.push_back({step.device, *key, size, static_cast<std::byte>(caches_.size() + 1), true, ++now_});
        const auto at = memory(step.device).find_cache(*key);
        if (!at) {
          say("add_cache: not there");
          break;
        }
        ggml_context* context = ggml_init({ggml_tensor_overhead(), nullptr, true});
        ggml_tensor* tensor = ggml_new_tensor_1d(context, GGML_TYPE_I8, static_cast<std::int64_t>(size));
        const std::vector<std::byte> bytes(size, caches_.back().pattern);
        if (!memory(step.device).arena().bind(tensor, *at) ||
            !devices_[step.device]->sim().set(tensor, 0, bytes, 0, {}, Transfer::state))
          say("add_cache: cannot be written");
        ggml_free(context);
      } else if (key.error().code != Code::over_budget) {
        say("add_cache: {}", key.error().message);
      }
      break;
    }
    case Op::find_cache:
      if (!cache) break;
      cache->used = ++now_;
      if (memory(cache->device).find_cache(cache->key).has_value() != cache->there) say("find_cache: {}", cache->there);
      break;
    case Op::drop_cache:
      if (!cache) break;
      memory(cache->device).drop_cache(cache->key);
      cache->there = false;
      break;
    case Op::release: forget_session(step.session, false); break;
    case Op::close: forget_session(step.session, true); break;
  }
  check();
  return broken_;
}

void World::check_contents(std::size_t d, const DeviceMemory::Occupant& o) {
  ggml_context* context = ggml_init({ggml_tensor_overhead(), nullptr, true});
  ggml_tensor* tensor = ggml_new_tensor_1d(context, GGML_TYPE_I8, static_cast<std::int64_t>(o.size));
  std::vector<std::byte> bytes(o.size), want(o.size);
  if (!memory(d).arena().bind(tensor, o.at)) {
    say("{} lies outside of every buffer", name_of(o.block));
  } else if (devices_[d]->sim().get(tensor, 0, bytes, 0)) {
    if (o.cache) {
      const auto found = std::ranges::find_if(caches_, [&](const Cache& c) { return c.device == d && c.key == o.block; });
      std::fill_n(want.begin(), found->size, found->pattern);
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(found->size), bytes.end(), std::byte{});
    } else {
      std::ranges::copy(world_model(*model_of(o.block.component)).image(o.block.block), want.begin());
    }
    if (bytes != want) say("{} on device {}: not its bytes", name_of(o.block), d);
  }
  ggml_free(context);
}

void World::check() {
  for (std::size_t d = 0; d < kDevices; ++d) {
    const auto books = device(d).ledger().report();
    Bytes live = 0, buffers = 0;
    for (const auto& event : devices_[d]->sim().log()) {
      if (!event.ok) continue;
      if (event.kind == SimEvent::Kind::alloc) live += event.bytes, ++buffers;
      if (event.kind == SimEvent::Kind::free) live -= event.bytes, --buffers;
    }
    if (live != books.total) say("device {}: {} bytes booked, {} alive", d, books.total, live);
    if (static_cast<int>(buffers) != device(d).live_buffers()) say("device {}: buffers", d);
    if (memory(d).arena().size() != books.total)
      say("device {}: {} booked, arena {}", d, books.total, memory(d).arena().size());
    if (memory(d).taken() != books.total + books.backend) say("device {}: taken {}", d, memory(d).taken());
    const auto budget = memory(d).budget();
    if (budget && books.total + books.backend > *budget && !may_exceed_[d])
      say("device {}: {} + {} bytes taken of {}", d, books.total, books.backend, *budget);
    std::set<BlockId> there;
    Address end = 0;
    for (const auto& o : memory(d).occupants()) {
      if (o.at < end) say("device {}: {} overlaps", d, name_of(o.block));
      end = o.at + o.size;
      if (!o.cache) {
        const auto model = model_of(o.block.component);
        if (!model || store_->device_of(o.block.component) != d) {
          say("device {}: {} does not belong there", d, name_of(o.block));
          continue;
        }
        if (o.loaded) there.insert(o.block);
      }
      if (o.loaded || o.cache) check_contents(d, o);
    }
    if (there != loaded_[d]) say("device {}: {} blocks are there, {} by the moves", d, there.size(), loaded_[d].size());
  }
  const auto host = store_->host_ledger().report(), pinned = store_->pinned_ledger().report();
  const auto use = [&](Use u) { return host.by_use[static_cast<std::size_t>(u)]; };
  Bytes most = 0, staging = 0;
  for (std::size_t m = 0; m < kModels; ++m)
    if (components_[m]) most += store_->weight_bytes(*components_[m]);
  for (auto& memory : memories_) staging += memory->staging().size();
  if (setup_.tier != HostTier::read) most = 0;
  if (use(Use::images) > most) say("host: {} bytes of images booked, of {}", use(Use::images), most);
  if (store_->counters().images_kept > use(Use::images)) say("host: images kept without being booked");
  // The store has a conversion buffer of its own, as large as an image at most, with a cache line to spare.
  if (use(Use::staging) < staging || use(Use::staging) > staging + conversion_)
    say("host: {} bytes of staging booked, {} there", use(Use::staging), staging);
  if (setup_.host_budget && host.total > *setup_.host_budget) say("host: {} booked of {}", host.total, *setup_.host_budget);
  if (pinned.total > 2 * setup_.pinned || pinned.total > host.total) say("host: {} pinned", pinned.total);
}

std::vector<std::string> World::end() {
  broken_.clear();
  holds_.clear();
  for (const BlockId id : flags_) store_->set_flag(id, BlockFlag::merged, false);
  flags_.clear();
  for (std::size_t s = 0; s < kSessions; ++s) forget_session(s, true);
  for (auto& cache : caches_) {
    memory(cache.device).drop_cache(cache.key);
    cache.there = false;
  }
  for (auto& component : components_) {
    if (!component) continue;
    for (auto& memory : memories_) memory->forget(*component);
    const auto removed = store_->remove(*component);
    if (!removed) say("at the end: {}", removed.error().message);
    component.reset();
  }
  for (auto& memory : memories_) memory->unload(Leaving::closed);
  check();
  for (std::size_t d = 0; d < kDevices; ++d) {
    if (const auto total = device(d).ledger().report().total; total > 0) say("at the end, device {}: {} bytes", d, total);
    if (device(d).live_buffers() > 0) say("at the end, device {}: {} buffers", d, device(d).live_buffers());
  }
  for (auto& memory : memories_) memory.reset();
  for (std::size_t d = 0; d < kDevices; ++d)
    if (const auto backend = device(d).ledger().report().backend; backend > 0)
      say("at the end, device {}: {} of the backend", d, backend);
  if (const auto total = store_->host_ledger().report().total; total > conversion_) say("at the end, host: {} bytes", total);
  if (const auto total = store_->pinned_ledger().report().total; total > 0) say("at the end, host: {} bytes pinned", total);
  return broken_;
}

}  // namespace sluice::test
