#include "bench/memory_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace sluice::bench {
namespace {

enum Kind { kResidents, kPassing, kAllocated, kKinds };

struct Change {
  double at_s = 0;
  std::array<std::int64_t, kKinds> by{};
};

/// A block that was copied to the device and is still there.
struct Block {
  Bytes size = 0;
  double since_s = 0;
  Kind kind = kResidents;
};

double seconds(Moment moment) { return static_cast<double>(moment) * 1e-9; }

}  // namespace

std::vector<MemorySample> memory_timeline(std::span<const SimEvent> log, std::span<const StageMark> marks, Bytes zone) {
  std::vector<Change> changes;
  std::map<std::uint32_t, Bytes> buffers;
  std::set<std::uint32_t> zones;
  std::map<std::pair<std::uint32_t, Bytes>, Block> blocks;
  std::vector<std::pair<double, Bytes>> working;  // from when on a stage has how much
  Bytes backend = 0;
  // Ends of the latest copy, computation and other transfer, and of anything.
  std::array<double, 3> clocks{};
  double stage_s = 0, now_s = 0, compute_s = 0;
  std::size_t mark = 0;
  const auto add = [&](double at, Kind kind, std::int64_t bytes) {
    Change change{.at_s = at};
    change.by[kind] = bytes;
    changes.push_back(change);
  };
  const auto forget = [&](std::uint32_t buffer, Bytes from, Bytes to, double at) {
    for (auto it = blocks.lower_bound({buffer, 0}); it != blocks.end() && it->first.first == buffer;) {
      const Block& b = it->second;
      if (it->first.second < to && from < it->first.second + b.size) {
        add(std::max(at, b.since_s), b.kind, -static_cast<std::int64_t>(b.size));
        it = blocks.erase(it);
      } else {
        ++it;
      }
    }
  };
  for (std::size_t i = 0; i <= log.size(); ++i) {
    for (; mark < marks.size() && marks[mark].events <= i; ++mark) {
      stage_s = now_s;
      compute_s = std::max(compute_s, stage_s);
      working.emplace_back(stage_s, marks[mark].transient);
    }
    if (i == log.size()) break;
    const SimEvent& e = log[i];
    if (!e.ok) continue;
    // Takes place after its own queue's last and not before its stage.
    const auto place = [&](std::size_t queue) {
      const double begin = std::max({seconds(e.start), stage_s, clocks[queue]});
      clocks[queue] = begin + seconds(e.end - e.start);
      now_s = std::max(now_s, clocks[queue]);
      return begin;
    };
    const double idle_at = std::max(compute_s, stage_s);
    switch (e.kind) {
      case SimEvent::Kind::alloc:
        buffers[e.buffer] = e.bytes;
        if (e.bytes == zone) zones.insert(e.buffer);
        add(idle_at, kAllocated, static_cast<std::int64_t>(e.bytes));
        break;
      case SimEvent::Kind::free:
        forget(e.buffer, 0, UINT64_MAX, idle_at);
        add(idle_at, kAllocated, -static_cast<std::int64_t>(e.bytes));
        buffers.erase(e.buffer);
        zones.erase(e.buffer);
        break;
      case SimEvent::Kind::backend:
        add(idle_at, kAllocated, static_cast<std::int64_t>(e.bytes) - static_cast<std::int64_t>(backend));
        backend = e.bytes;
        break;
      case SimEvent::Kind::discard: forget(e.buffer, e.offset, e.offset + e.bytes, idle_at); break;
      case SimEvent::Kind::compute: place(1), compute_s = clocks[1]; break;
      case SimEvent::Kind::get: place(2); break;
      case SimEvent::Kind::set: {
        const double begin = place(e.transfer == Transfer::weights ? 0 : 2);
        if (e.transfer != Transfer::weights) break;
        forget(e.buffer, e.offset, e.offset + e.bytes, begin);
        const bool slot = zones.contains(e.buffer) && mark > 0 && e.offset < marks[mark - 1].transient;
        const Kind kind = slot ? kPassing : kResidents;
        blocks[{e.buffer, e.offset}] = {e.bytes, begin, kind};
        add(begin, kind, static_cast<std::int64_t>(e.bytes));
        break;
      }
    }
  }
  std::stable_sort(changes.begin(), changes.end(), [](const auto& a, const auto& b) { return a.at_s < b.at_s; });
  std::array<std::int64_t, kKinds> sums{};
  std::vector<MemorySample> samples;
  std::size_t next = 0;
  Bytes transient = 0;
  const auto sample = [&](double at) {
    if (samples.empty() || samples.back().at_s < at) samples.push_back({.at_s = at});
    MemorySample& s = samples.back();
    s.residents = static_cast<Bytes>(sums[kResidents]);
    s.passing = static_cast<Bytes>(sums[kPassing]);
    s.working = transient - std::min(transient, s.passing);
    s.allocated = static_cast<Bytes>(sums[kAllocated]);
  };
  for (const Change& change : changes) {
    for (; next < working.size() && working[next].first <= change.at_s; ++next) {
      transient = working[next].second;
      sample(working[next].first);
    }
    for (std::size_t k = 0; k < kKinds; ++k) sums[k] += change.by[k];
    sample(change.at_s);
  }
  for (; next < working.size(); ++next) {
    transient = working[next].second;
    sample(working[next].first);
  }
  if (samples.empty() || samples.back().at_s < now_s) sample(now_s);
  return samples;
}

std::string draw_timeline(std::span<const MemorySample> samples, std::span<const std::pair<double, std::string>> stages,
                          Bytes budget, const std::string& title) {
  constexpr double kWidth = 900, kHeight = 360, kLeft = 60, kTop = 72, kRight = 16, kBottom = 64;
  const double seconds = std::max(samples.back().at_s, 1e-9);
  Bytes most = budget;
  for (const auto& s : samples) most = std::max(most, s.allocated);
  const auto x = [&](double at) { return kLeft + at / seconds * (kWidth - kLeft - kRight); };
  const auto y = [&](Bytes bytes) {
    return kHeight - kBottom - static_cast<double>(bytes) / (1.1 * static_cast<double>(most)) * (kHeight - kTop - kBottom);
  };
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<text x=\"{2}\" y=\"20\" font-size=\"14\">{3}</text>\n",
      kWidth, kHeight, kLeft, title);
  struct Area {
    const char *name, *colour;
    Bytes (*top)(const MemorySample&);
  };
  // From the back: each area hides what is below it.
  const std::array areas{
      Area{"allocated", "#e4e4e4", [](const MemorySample& s) { return s.allocated; }},
      Area{"state and workspace", "#e8a33d", [](const MemorySample& s) { return s.residents + s.passing + s.working; }},
      Area{"blocks passing through", "#6fb38a", [](const MemorySample& s) { return s.residents + s.passing; }},
      Area{"residents", "#3b6ea8", [](const MemorySample& s) { return s.residents; }},
  };
  double legend = kLeft;
  for (const auto& area : areas) {
    std::string path = fmt::format("M{:.1f} {:.1f}", x(0), y(0));
    Bytes before = 0;
    for (const auto& s : samples) {
      const Bytes top = area.top(s);
      if (top != before) path += fmt::format("H{:.1f}V{:.1f}", x(s.at_s), y(top));
      before = top;
    }
    path += fmt::format("H{:.1f}V{:.1f}Z", x(seconds), y(0));
    out += fmt::format("<path d=\"{}\" fill=\"{}\" stroke=\"none\"/>\n", path, area.colour);
    out +=
        fmt::format("<rect x=\"{0}\" y=\"{1}\" width=\"12\" height=\"12\" fill=\"{2}\"/><text x=\"{3}\" y=\"{4}\">{5}</text>\n",
                    legend, kHeight - 22, area.colour, legend + 17, kHeight - 12, area.name);
    legend += 190;
  }
  out += fmt::format(
      "<path d=\"M{0} {1:.1f}H{2}\" stroke=\"#b03030\" stroke-dasharray=\"6 4\" fill=\"none\"/>\n"
      "<text x=\"{2}\" y=\"{3:.1f}\" text-anchor=\"end\" fill=\"#b03030\">budget {4}</text>\n",
      kLeft, y(budget), kWidth - kRight, y(budget) - 4, format_bytes(budget));
  // A name above its neighbour's where the two would meet.
  double free_from = 0;
  bool high = false;
  for (const auto& [at, name] : stages) {
    high = x(at) < free_from && !high;
    free_from = x(at) + 60;
    const double base = high ? kTop - 24 : kTop - 8;
    out += fmt::format(
        "<path d=\"M{0:.1f} {1}V{2}\" stroke=\"#808080\" stroke-width=\"0.7\" fill=\"none\"/>"
        "<text x=\"{3:.1f}\" y=\"{4}\">{5}</text>\n",
        x(at), base - 10, kHeight - kBottom, x(at) + 3, base, name);
  }
  for (int i = 0; i <= 4; ++i) {
    const Bytes bytes = most / 4 * static_cast<Bytes>(i);
    const double at = seconds * i / 4;
    out += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.0f} MiB</text>", kLeft - 6, y(bytes) + 4,
                       static_cast<double>(bytes) / static_cast<double>(MiB));
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"{}\">{:.2f} s</text>\n", x(at), kHeight - kBottom + 16,
                       i == 4 ? "end" : "middle", at);
  }
  return out + "</svg>\n";
}

}  // namespace sluice::bench
