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
      : devices_(devices), values_(values), fallback_(fallback), blocks_(devices[0].weights.size()), live_(blocks_, 0) {
    for (std::size_t d = 0; d < devices.size(); ++d)
      if (d != fallback) dealt_.push_back(d);
    for (const SpreadValue& value : values) {
      const int from = std::max(value.written_by, 0);
      const int to = value.read_by.empty() ? from : value.read_by.back();
      for (int b = from; b <= to; ++b) live_[static_cast<std::size_t>(b)] += value.size;
    }
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
      beside[*device] = std::max(beside[*device], d.workspace[b] + live_[b]);
      s.least[*device] = std::max(s.least[*device], d.weights[b] + d.workspace[b] + live_[b]);
      compute_s += d.compute_s[b];
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
  std::vector<Bytes> live_;  // per block, as if all values were on one device
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
