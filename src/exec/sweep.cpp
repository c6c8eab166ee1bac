#include "exec/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>

#include "device/refusal.h"

namespace sluice {
namespace {
// A cancel is one atomic store and wakes nobody, so a wait for a slow copy looks at it this often.
constexpr std::chrono::milliseconds kCancelPoll{20};
}  // namespace

void SweepStats::append(const SweepStats& later) {
  // A runner that was ended early has room for sweeps that it did not do.
  const auto done = static_cast<std::ptrdiff_t>(std::min(later.sweep_s.size(), later.copied.size()));
  copied.insert(copied.end(), later.copied.begin(), later.copied.begin() + done);
  sweep_s.insert(sweep_s.end(), later.sweep_s.begin(), later.sweep_s.end());
  wait_s += later.wait_s;
  copied_total += later.copied_total;
  start = later.start;
  end = later.end;
}

SweepRunner::SweepRunner(const std::vector<Ground>& grounds, WeightStore& store, Stage& stage, std::span<std::byte> crossing,
                         int sweeps, const CancelToken& cancel)
    : store_(store), stage_(stage), crossing_(crossing), sweeps_(sweeps), cancel_(cancel), links_(grounds.size()) {
  const std::size_t n = stage.blocks();
  block_end_.assign(2 * n, 0);
  copied_sweep_.assign(n, -1);
  copy_end_.assign(n, 0);
  loading_.assign(n, false);
  stats_.sweep_s.reserve(static_cast<std::size_t>(sweeps));
  stats_.copied.assign(static_cast<std::size_t>(std::max(sweeps, 1)), 0);

  // The first sweep brings residents that are not there yet, in the order of use, between the streamed blocks.
  std::vector<const Copy*> streamed(n, nullptr);
  for (std::size_t s = 0; s < links_.size(); ++s) {
    links_[s].ground = grounds[s];
    links_[s].section = s;
    links_[s].jobs.reserve(n);
    for (const Copy& c : stage.plan(s).copies) streamed[c.block] = &c;
  }
  for (std::uint32_t b = 0; b < n; ++b) {
    const auto& place = stage.places()[b];
    Link& link = links_[stage.section_of(b)];
    if (place.kind == WeightPlace::Kind::streamed) {
      const Copy* c = streamed[b];
      link.jobs.push_back({b, false, c->after_previous_sweep ? 0 : c->after_block + 1, 0});
    } else if (place.kind == WeightPlace::Kind::resident &&
               link.ground.memory->resident({stage.spec().component, b}) != place.address) {
      link.jobs.push_back({b, true, 0, 0});
      loading_[b] = true;
    }
  }
  for (Link& link : links_)
    if (!link.jobs.empty()) start(link);
}

void SweepRunner::start(Link& link) {
  link.thread = NamedThread("sluice-link", [this, &link] {
    // Nobody above a thread catches: a container without memory would end the program. Words short enough to need none.
    try {
      link_loop(link);
    } catch (const std::bad_alloc&) {
      fail_with({Code::device_oom, "out of memory"});
    } catch (...) {
      fail_with({Code::device_failed, "copying failed"});
    }
  });
}

SweepRunner::~SweepRunner() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_copies_.cancel();
  changed_.notify_all();
  for (Link& link : links_) link.thread.join();
}

void SweepRunner::fail_with(Error error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  changed_.notify_all();
}

std::optional<SweepRunner::Job> SweepRunner::next_job(Link& link) {
  if (link.next < link.jobs.size()) return link.jobs[link.next++];
  const auto& copies = stage_.plan(link.section).copies;
  if (++link.job_sweep >= sweeps_ || copies.empty()) return std::nullopt;
  link.jobs.clear();  // capacity stays: nothing is allocated in a steady sweep
  const auto n = static_cast<std::int64_t>(stage_.blocks());
  for (const Copy& c : copies) {
    const std::int64_t base = (c.after_previous_sweep ? link.job_sweep - 1 : link.job_sweep) * n;
    link.jobs.push_back({c.block, false, base + c.after_block + 1, link.job_sweep});
  }
  link.next = 1;
  return link.jobs[0];
}

void SweepRunner::link_loop(Link& link) {
  const auto n = static_cast<std::int64_t>(stage_.blocks());
  while (const auto job = next_job(link)) {
    Moment not_before = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || error_ || ended_ >= job->after; });
      if (stopping_ || error_) return;
      if (job->after > 0) not_before = block_end_[static_cast<std::size_t>((job->after - 1) % (2 * n))];
    }
    auto done = copy(link, *job, not_before);
    if (!done) return fail_with(std::move(done).error());
    const BlockId id{stage_.spec().component, job->block};
    const std::lock_guard lock(mutex_);
    copied_sweep_[job->block] = job->sweep;
    copy_end_[job->block] = *done;
    const Bytes bytes = store_.layout(id).size;
    stats_.copied[static_cast<std::size_t>(job->sweep)] += bytes;
    stats_.copied_total += bytes;
    if (job->resident) link.ground.memory->set_resident(id, stage_.places()[job->block].address);
    changed_.notify_all();
  }
}

Result<Moment> SweepRunner::copy(const Link& link, const Job& job, Moment not_before) {
  const BlockId id{stage_.spec().component, job.block};
  const auto doing = [&] {
    return fmt::format("{}, copying block {}", stage_.spec().name, stage_.model().blocks[job.block].name);
  };
  auto image = store_.fetch(id, link.ground.staging, stop_copies_);
  if (!image) return fail_while(doing(), std::move(image).error());
  const BlockLayout& layout = store_.layout(id);
  if (layout.raw) {
    auto end = link.device().set(stage_.image_tensor(job.block), 0, *image, not_before, stop_copies_);
    if (!end) return fail_while(doing(), std::move(end).error());
    return end;
  }
  Moment end = not_before;
  for (std::size_t w = 0; w < layout.tensors.size(); ++w) {
    if (layout.tensors[w].apart) continue;
    auto r = link.device().set(stage_.weight_tensors(job.block)[w], 0,
                               image->subspan(layout.tensors[w].offset, layout.tensors[w].size), end, stop_copies_);
    if (!r) return fail_while(doing(), std::move(r).error());
    end = *r;
  }
  return end;
}

Status SweepRunner::carry_over(std::size_t lane, std::size_t block) {
  for (const auto& [value, from, to] : stage_.arrivals(block)) {
    const ggml_tensor* source = stage_.value_tensor(from, lane, value);
    const auto bytes = crossing_.first(ggml_nbytes(source));
    auto end = links_[from].device().get(source, 0, bytes, now_);
    if (end) end = links_[to].device().set(stage_.value_tensor(to, lane, value), 0, bytes, *end, cancel_, Transfer::state);
    if (!end) return fail(std::move(end).error());
    now_ = std::max(now_, *end);
  }
  return {};
}

SweepStats SweepRunner::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

Bytes SweepRunner::copied() const {
  const std::lock_guard lock(mutex_);
  return stats_.copied_total;
}

Status SweepRunner::write(std::size_t lane, Value input, std::span<const std::byte> data) {
  // On every device that reads it; an input that no block reads has a tensor on none.
  for (const Link& link : links_) {
    ggml_tensor* t = stage_.value_tensor(link.section, lane, input);
    if (!t) continue;
    if (ggml_nbytes(t) != data.size())
      return fail(Code::invalid_argument,
                  fmt::format("{}: an input of {} bytes was given {}", stage_.spec().name, ggml_nbytes(t), data.size()));
    auto end = link.device().set(t, 0, data, now_, cancel_, Transfer::state);
    if (!end) return fail_while(stage_.spec().name, std::move(end).error());
    now_ = std::max(now_, *end);
  }
  return {};
}

Status SweepRunner::read(std::size_t lane, Value output, std::span<std::byte> data) {
  const std::size_t home = stage_.home_of(output);
  const ggml_tensor* t = stage_.value_tensor(home, lane, output);
  if (!t || ggml_nbytes(t) != data.size())
    return fail(Code::invalid_argument,
                fmt::format("{}: an output was asked for in {} bytes", stage_.spec().name, data.size()));
  auto end = links_[home].device().get(t, 0, data, now_);
  if (!end) return fail_while(stage_.spec().name, std::move(end).error());
  now_ = std::max(now_, *end);
  return {};
}

Status SweepRunner::sweep(const std::function<void(int)>& on_block) {
  const std::size_t n = stage_.blocks();
  if (sweep_ >= sweeps_ || unfinished_) return fail(Code::invalid_argument, "a sweep more than was planned for");
  const Moment begin = sweep_ == 0 ? now_ : last_end_;
  for (std::size_t b = 0; b < n; ++b) {
    if (cancel_.cancelled()) return fail(Code::cancelled, fmt::format("{} was cancelled", stage_.spec().name));
    const auto& place = stage_.places()[b];
    const bool streamed = place.kind == WeightPlace::Kind::streamed;
    if (streamed || loading_[b]) {
      std::unique_lock lock(mutex_);
      const auto ready = [&] { return error_ || copied_sweep_[b] >= (streamed ? sweep_ : 0); };
      while (!changed_.wait_for(lock, kCancelPoll, ready)) {
        if (cancel_.cancelled()) return fail(Code::cancelled, fmt::format("{} was cancelled", stage_.spec().name));
      }
      if (error_) return fail(*error_);
      if (copy_end_[b] > now_) {
        stats_.wait_s += static_cast<double>(copy_end_[b] - now_) * 1e-9;
        now_ = copy_end_[b];
      }
    }
    const std::size_t section = stage_.section_of(b);
    const auto while_running = [&](Error error) {
      return fail_while(fmt::format("{}, block {}", stage_.spec().name, stage_.model().blocks[b].name), std::move(error));
    };
    for (std::size_t l = 0; l < stage_.lanes(); ++l) {
      if (auto carried = carry_over(l, b); !carried) return while_running(std::move(carried).error());
      auto end = submit(links_[section].device(), stage_.graph(l, b), now_, cancel_);
      if (!end) return while_running(std::move(end).error());
      now_ = std::max(now_, *end);
      for (const auto& dead : stage_.dead_after(l, b)) stage_.discard(dead.section, dead.address, dead.size);
    }
    if (streamed)
      stage_.discard(section, place.address, store_.layout({stage_.spec().component, static_cast<std::uint32_t>(b)}).size);
    stage_.discard(section, stage_.plan(section).workspace[b], stage_.block_cost(b).workspace);
    if (b + 1 < n) {
      const std::lock_guard lock(mutex_);
      block_end_[static_cast<std::size_t>(sweep_ % 2) * n + b] = now_;
      ++ended_;
      changed_.notify_all();
    }
    if (on_block) on_block(static_cast<int>(b) + 1);
  }
  last_end_ = now_;
  stats_.start = begin;
  stats_.end = now_;
  stats_.sweep_s.push_back(static_cast<double>(now_ - begin) * 1e-9);
  unfinished_ = true;
  return {};
}

void SweepRunner::finish() {
  if (!unfinished_) return;
  unfinished_ = false;
  const std::lock_guard lock(mutex_);
  block_end_[static_cast<std::size_t>(sweep_ % 2) * stage_.blocks() + stage_.blocks() - 1] = now_;
  ++ended_;
  ++sweep_;
  changed_.notify_all();
}

}  // namespace sluice
