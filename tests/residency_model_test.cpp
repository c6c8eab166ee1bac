// The rules of residency, against random sequences of everything that can happen to it. The reference (support/residency_rules)
// was written from the design alone.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>

#include "support/residency_world.h"

using namespace sluice;
using namespace sluice::test;

namespace {

#ifdef SLUICE_SANITIZED
constexpr unsigned kSequences = 500;
#else
constexpr unsigned kSequences = 10'000;
#endif
constexpr int kSteps = 12;

struct Sequence {
  Setup setup;
  std::vector<Step> steps;
};

class Generator {
 public:
  explicit Generator(unsigned seed) : rng_(seed) {}

  Sequence sequence() {
    Sequence out;
    out.setup.tier = static_cast<HostTier>(below(3));
    if (chance(4)) out.setup.host_budget = 10 * KiB + below(64) * KiB;
    if (chance(3)) out.setup.max_buffer = chance(2) ? 12 * KiB : 40 * KiB;
    if (chance(3)) out.setup.pinned = below(40) * KiB;
    for (auto& budget : out.setup.budgets)
      if (!chance(4)) budget = this->budget();
    // Something has to be there before anything can happen to it.
    const std::size_t models = 1 + below(3);
    for (std::size_t m = 0; m < models; ++m) {
      Step s = step(Step::Op::add);
      s.models = {(m + below(2)) % World::kModels};
      out.steps.push_back(s);
    }
    while (out.steps.size() < kSteps) out.steps.push_back(any());
    return out;
  }

 private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(rng_() % n); }
  bool chance(std::uint32_t one_in) { return below(one_in) == 0; }
  Bytes budget() { return 6 * KiB + below(60) * KiB + (chance(4) ? below(KiB) : 0); }

  Step step(Step::Op op) {
    Step s;
    s.op = op;
    s.session = chance(3) ? 1 : 0;
    s.device = chance(3) ? 1 : 0;
    s.models = {below(World::kModels)};
    s.block = below(4);
    s.lanes = 1 + below(2);
    s.sweeps = 1 + static_cast<int>(below(3));
    s.n = static_cast<int>(below(8));
    return s;
  }

  Step any() {
    using Op = Step::Op;
    static constexpr Op kRare[] = {Op::remove,    Op::add,        Op::hold,       Op::unhold,  Op::flag,  Op::unflag,
                                   Op::relieve,   Op::place,      Op::unload,     Op::demote,  Op::load,  Op::add_cache,
                                   Op::add_cache, Op::find_cache, Op::drop_cache, Op::release, Op::close, Op::budget,
                                   Op::budget,    Op::budget,     Op::hold,       Op::admit};
    Step s = step(chance(2) ? Op::run : kRare[below(std::size(kRare))]);
    if (s.op == Op::budget && !chance(6)) s.size = budget();
    if (s.op == Op::add_cache) s.size = 1 + below(6 * KiB);
    if (s.op == Op::run || s.op == Op::admit) {
      if (chance(3)) s.models.push_back((s.models[0] + 1 + below(2)) % World::kModels);
      if (s.op == Op::run && chance(2)) {
        s.trouble = static_cast<Trouble>(1 + below(8));
        s.n = 1 + static_cast<int>(below(s.trouble == Trouble::alloc || s.trouble == Trouble::host ? 2 : 10));
        // A driver that refuses is asked again after a while.
        if (s.trouble == Trouble::alloc && !chance(8)) s.trouble = Trouble::compute;
        if (s.trouble == Trouble::budget || s.trouble == Trouble::hold) {
          s.sweeps = 2 + static_cast<int>(below(2));
          s.n = 1;
          if (!chance(6)) s.size = budget();
        }
      }
    }
    return s;
  }

  std::mt19937 rng_;
};

/// What a sequence broke, with the number of steps it took; empty: nothing.
std::vector<std::string> broken(const Sequence& sequence, World::Seen* seen = nullptr) {
  World world(sequence.setup);
  std::vector<std::string> out;
  for (const auto& step : sequence.steps) {
    out = world.apply(step);
    if (!out.empty()) break;
  }
  if (out.empty()) out = world.end();
  if (seen) {
    seen->runs += world.seen.runs, seen->refusals += world.seen.refusals, seen->errors += world.seen.errors;
    seen->cancelled += world.seen.cancelled, seen->replans += world.seen.replans, seen->given_up += world.seen.given_up;
    seen->demoted += world.seen.demoted, seen->caches += world.seen.caches, seen->loaded += world.seen.loaded;
    seen->placed += world.seen.placed, seen->alone += world.seen.alone;
  }
  return out;
}

/// What kind of thing is said, whatever the numbers: shrinking must not drift from one broken rule to another.
std::string kind_of(const std::string& text) {
  std::string kind;
  for (const char c : text.substr(0, text.find(" for trouble")))
    if (c < '0' || c > '9') kind += c;
  return kind;
}

bool still_broken(const Sequence& sequence, const std::string& kind) {
  for (const auto& text : broken(sequence))
    if (kind_of(text) == kind) return true;
  return false;
}

Sequence shrunk(Sequence sequence, const std::string& kind) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    const auto attempt = [&](const std::function<void(Sequence&)>& change) {
      Sequence less = sequence;
      change(less);
      if (!still_broken(less, kind)) return false;
      sequence = std::move(less);
      return true;
    };
    for (std::size_t i = sequence.steps.size(); i-- > 0;)
      smaller |= attempt([&](Sequence& s) { s.steps.erase(s.steps.begin() + static_cast<std::ptrdiff_t>(i)); });
    for (std::size_t i = 0; i < sequence.steps.size(); ++i) {
      const Step step = sequence.steps[i];  // a copy: an attempt replaces the sequence
      if (step.trouble != Trouble::none) smaller |= attempt([&](Sequence& s) { s.steps[i].trouble = Trouble::none; });
      if (step.sweeps > 1) smaller |= attempt([&](Sequence& s) { s.steps[i].sweeps = 1; });
      if (step.lanes > 1) smaller |= attempt([&](Sequence& s) { s.steps[i].lanes = 1; });
      if (step.models.size() > 1) smaller |= attempt([&](Sequence& s) { s.steps[i].models.resize(1); });
    }
    if (sequence.setup.host_budget) smaller |= attempt([&](Sequence& s) { s.setup.host_budget.reset(); });
    if (sequence.setup.max_buffer < GiB) smaller |= attempt([&](Sequence& s) { s.setup.max_buffer = GiB; });
    if (sequence.setup.pinned > 0) smaller |= attempt([&](Sequence& s) { s.setup.pinned = 0; });
    for (std::size_t d = 0; d < World::kDevices; ++d)
      if (sequence.setup.budgets[d]) smaller |= attempt([&](Sequence& s) { s.setup.budgets[d].reset(); });
  }
  return sequence;
}

std::string text_of(const Sequence& sequence, unsigned seed) {
  std::string text = fmt::format("seed {}:\n  {}\n", seed, describe(sequence.setup));
  for (const auto& step : sequence.steps) text += "  " + describe(step) + "\n";
  for (const auto& rule : broken(sequence)) text += "  => " + rule + "\n";
  return text;
}

}  // namespace

TEST_CASE("random sequences of everything that can happen to weights: no rule is broken, no byte is lost, no bit changes") {
  World::Seen seen;
  std::map<std::string, int> kinds;  // one sequence of each kind is enough
  for (unsigned seed = 1; seed <= kSequences; ++seed) {
    const Sequence sequence = Generator(seed).sequence();
    const auto rules = broken(sequence, &seen);
    if (rules.empty()) continue;
    const std::string kind = kind_of(rules[0]);
    if (++kinds[kind] > 1) continue;
    FAIL_CHECK(text_of(shrunk(sequence, kind), seed) << "  found as: " << rules[0]);
    if (kinds.size() >= 20) break;
  }
  for (const auto& [kind, times] : kinds) MESSAGE(times, " × ", kind);
  MESSAGE(
      fmt::format("{} runs, {} refusals, {} errors, {} cancelled, {} re-planned, {} loaded, {} given up, {} demoted, {} caches "
                  "dropped, {} re-placed, {} repeated",
                  seen.runs, seen.refusals, seen.errors, seen.cancelled, seen.replans, seen.loaded, seen.given_up, seen.demoted,
                  seen.caches, seen.placed, seen.alone));
  CHECK(seen.runs > kSequences);
  CHECK(seen.refusals > kSequences / 20);
  CHECK(seen.errors > kSequences / 20);
  CHECK(seen.cancelled > kSequences / 50);
  CHECK(seen.replans > kSequences / 50);
  CHECK(seen.given_up > kSequences / 20);
  CHECK(seen.demoted > kSequences / 20);
  CHECK(seen.caches > kSequences / 100);
  CHECK(seen.placed > kSequences / 20);
}
