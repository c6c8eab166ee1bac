#include "exec/spread.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <tuple>

namespace sluice {
namespace {

constexpr std::size_t kMostCuts = 20000;
constexpr double kStepTolerance = 1.05;
constexpr double kBalanceStep = 0.05;  // shares nearer to each other than this are as good

struct Scored {
  Spread spread;
  double imbalance = 0;  // largest distance of a device's share of the weights from its due
  Bytes crossing = 0;
};

class Dealer {
 public:
  Dealer(const std::vector<SpreadDevice>& devices, const std::vector<SpreadValue>& values, std::optional<std::size_t> fallback)
      : devices_(devices), values_(values), fallback_(fallback), blocks_(devices[0].weights.size()) {
    for (std::size_t d = 0; d < devices.size(); ++d)
      if (d != fallback) dealt_.push_back(d);
    double all = 0;
    for (const std::size_t d : dealt_) {
      const Bytes whole = std::accumulate(devices[d].weights.begin(), devices[d].weights.end(), Bytes{0});
      due_.push_back(static_cast<double>(std::min(devices[d].capacity.value_or(whole), whole)));
      all += due_.back();
    }
    for (double& due : due_) due = all > 0 ? due / all : 1.0 / static_cast<double>(due_.size());
  }

  std::vector<Scored> deal() {
    // As fine a grid of cuts as the limit allows: cuts ascend, so there are (positions choose cuts, with repetition).
    const std::size_t cuts = dealt_.size() - 1;
    std::size_t step = 1;
    while (ways(blocks_ / step + 2, cuts) > kMostCuts) ++step;
    for (std::size_t at = 0; at < blocks_; at += step) positions_.push_back(at);
    positions_.push_back(blocks_);
    std::vector<std::size_t> chosen;
    choose(chosen, 0, cuts);
    return std::move(found_);
  }

 private:
  static std::size_t ways(std::size_t positions, std::size_t cuts) {
    double count = 1;
    for (std::size_t i = 0; i < cuts; ++i) count = count * static_cast<double>(positions + i) / static_cast<double>(i + 1);
    return count > 1e15 ? SIZE_MAX : static_cast<std::size_t>(count);
  }

  void choose(std::vector<std::size_t>& chosen, std::size_t from, std::size_t left) {
    if (left == 0) {
      if (auto scored = score(chosen)) found_.push_back(*std::move(scored));
      return;
    }
    for (std::size_t p = from; p < positions_.size(); ++p) {
      chosen.push_back(positions_[p]);
      choose(chosen, p, left - 1);
      chosen.pop_back();
    }
  }

  std::optional<std::size_t> able(std::size_t block, std::size_t wanted) const {
    for (std::size_t distance = 0; distance < dealt_.size(); ++distance)
      for (const std::size_t at : {wanted - distance, wanted + distance})
        if (at < dealt_.size() && devices_[dealt_[at]].unable[block].empty()) return dealt_[at];
    if (fallback_ && devices_[*fallback_].unable[block].empty()) return fallback_;
    return std::nullopt;
  }

  /// What of the values is on a block's own device while it runs, in its most demanding lane.
  struct Live {
    Bytes all = 0;                     // of every lane: written before, needed after
    Bytes ending = 0, ending_1 = 0;    // last needed here: of all lanes that are yet to come, and of one
    Bytes written = 0, written_1 = 0;  // written here: of all lanes until now, and of one
    Bytes least() const { return all + std::max(ending + written_1, ending_1 + written); }
  };

  /// Per block. As in Stage: a value is at home from its block to its last reader there or its first elsewhere, and on another
  /// device from its first to its last reader there.
  std::vector<Live> live_of(const std::vector<std::size_t>& device_of) const {
    std::vector<Live> live(blocks_);
    const int end = static_cast<int>(blocks_);
    struct Reads {
      int first = -1, last = -1;
    };
    std::vector<Reads> reads(devices_.size());
    for (const SpreadValue& value : values_) {
      reads.assign(devices_.size(), {});
      for (const int b : value.read_by) {
        Reads& r = reads[device_of[static_cast<std::size_t>(b)]];
        if (r.first < 0) r.first = b;
        r.last = b;
      }
      for (std::size_t d = 0; d < devices_.size(); ++d) {
        const bool home = value.written_by >= 0 && device_of[static_cast<std::size_t>(value.written_by)] == d;
        if (!home && reads[d].first < 0) continue;
        int from = value.written_by < 0 ? -1 : home ? value.written_by : reads[d].first;
        int to = std::max(reads[d].last, home ? value.written_by : -1);
        for (const Reads& r : reads) to = home ? std::max(to, r.first) : to;
        if (value.once) from = -1;
        if (value.once || (home && value.output)) to = end;
        const Bytes one = value.lane > 0 ? value.lane : value.size;
        for (int b = std::max(from, 0); b <= std::min(to, end - 1); ++b) {
          if (device_of[static_cast<std::size_t>(b)] != d) continue;
          Live& l = live[static_cast<std::size_t>(b)];
          if (from < b && b < to)
            l.all += value.size;
          else if (from < b)
            l.ending += value.size, l.ending_1 += one;
          else if (b < to)
            l.written += value.size, l.written_1 += one;
          else
            l.all += one;
        }
      }
    }
    return live;
  }

  std::optional<Scored> score(const std::vector<std::size_t>& cuts) const {
    Scored scored;
    Spread& s = scored.spread;
    const std::size_t n = devices_.size();
    std::vector<Bytes> weights(n, 0), beside(n, 0);
    s.least.assign(n, 0);
    double compute_s = 0;
    for (std::size_t b = 0; b < blocks_; ++b) {
      const auto run = static_cast<std::size_t>(std::upper_bound(cuts.begin(), cuts.end(), b) - cuts.begin());
      const auto device = able(b, run);
      if (!device) return std::nullopt;
      const SpreadDevice& d = devices_[*device];
      s.device_of.push_back(*device);
      s.elsewhere.push_back(devices_[dealt_[run]].unable[b]);
      weights[*device] += d.weights[b];
      compute_s += d.compute_s[b];
    }
    const auto live = live_of(s.device_of);
    for (std::size_t b = 0; b < blocks_; ++b) {
      const std::size_t device = s.device_of[b];
      const Bytes own = devices_[device].workspace[b] + live[b].least();
      beside[device] = std::max(beside[device], own);
      s.least[device] = std::max(s.least[device], devices_[device].weights[b] + own);
    }
    s.step_s = compute_s;
    s.fits = true;
    for (std::size_t d = 0; d < n; ++d) {
      const auto& capacity = devices_[d].capacity;
      if (!capacity) continue;
      s.fits = s.fits && s.least[d] <= *capacity;
      const Bytes kept = *capacity - std::min(*capacity, beside[d]);
      s.step_s =
          std::max(s.step_s, static_cast<double>(weights[d] - std::min(weights[d], kept)) / devices_[d].link_bytes_per_s);
    }
    const auto whole = static_cast<double>(std::accumulate(weights.begin(), weights.end(), Bytes{0}));
    for (std::size_t i = 0; i < dealt_.size() && whole > 0; ++i)
      scored.imbalance = std::max(scored.imbalance, std::abs(static_cast<double>(weights[dealt_[i]]) / whole - due_[i]));
    std::vector<bool> there(n);
    for (const SpreadValue& value : values_) {
      if (value.written_by < 0) continue;
      there.assign(n, false);
      there[s.device_of[static_cast<std::size_t>(value.written_by)]] = true;
      for (const int reader : value.read_by) {
        const std::size_t device = s.device_of[static_cast<std::size_t>(reader)];
        if (!there[device]) scored.crossing += value.size;
        there[device] = true;
      }
    }
    return scored;
  }

  const std::vector<SpreadDevice>& devices_;
  const std::vector<SpreadValue>& values_;
  const std::optional<std::size_t> fallback_;
  const std::size_t blocks_;
  std::vector<std::size_t> dealt_, positions_;
  std::vector<double> due_;  // parallel to dealt_: the share of the weights that a device should have
  std::vector<Scored> found_;
};

}  // namespace

std::vector<Spread> spread_blocks(const std::vector<SpreadDevice>& devices, const std::vector<SpreadValue>& values,
                                  std::optional<std::size_t> fallback) {
  auto found = Dealer(devices, values, fallback).deal();
  double shortest = INFINITY;
  for (const Scored& s : found)
    if (s.spread.fits) shortest = std::min(shortest, s.spread.step_s);
  const auto rank = [&](const Scored& s) {
    // Levels of 5 %: within one, balance decides.
    double level = 0;
    if (s.spread.fits && s.spread.step_s > shortest * kStepTolerance)
      level = shortest > 0 ? std::ceil(std::log(s.spread.step_s / shortest) / std::log(kStepTolerance)) : INFINITY;
    return std::tuple(!s.spread.fits, level, std::round(s.imbalance / kBalanceStep), s.crossing);
  };
  std::stable_sort(found.begin(), found.end(), [&](const Scored& a, const Scored& b) { return rank(a) < rank(b); });
  std::vector<Spread> spreads;
  std::set<std::vector<std::size_t>> known;
  for (Scored& s : found)
    if (known.insert(s.spread.device_of).second) spreads.push_back(std::move(s.spread));
  return spreads;
}

}  // namespace sluice
