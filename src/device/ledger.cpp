#include "device/ledger.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sluice {

std::string_view use_name(Use use) {
  constexpr std::array<std::string_view, kUses> names = {"arena", "weights", "slots",   "state", "workspace",
                                                         "cache", "mapped",  "staging", "images"};
  return names[static_cast<std::size_t>(use)];
}

Result<Lease> Ledger::reserve(Use use, Bytes size) {
  std::lock_guard lock(mutex_);
  Bytes booked = 0, needed = 0;
  if (!checked_add(total_, backend_, booked) || !checked_add(booked, size, needed))
    return fail(Code::over_budget, "more than 2^64 bytes asked for " + std::string(use_name(use)), ~Bytes{0},
                limit_.value_or(~Bytes{0}));
  if (limit_ && needed > *limit_)
    return fail(Code::over_budget,
                format_bytes(size) + " for " + std::string(use_name(use)) + " do not fit: needs " + format_bytes(needed) +
                    ", budget " + format_bytes(*limit_) + ", of which " + format_bytes(booked) + " are in use",
                needed, *limit_);
  by_use_[static_cast<std::size_t>(use)] += size;
  total_ += size;
  peak_ = std::max(peak_, needed);
  return Lease{this, use, size};
}

Status Ledger::set_backend(Bytes bytes) {
  std::lock_guard lock(mutex_);
  return book_backend(0, bytes);
}

Status Ledger::book_backend(Bytes others, Bytes own) {
  Bytes bytes = 0, needed = 0;
  if (!checked_add(others, own, bytes) || !checked_add(total_, bytes, needed))
    return fail(Code::over_budget, "more than 2^64 bytes for the backend", ~Bytes{0}, limit_.value_or(~Bytes{0}));
  if (limit_ && bytes > backend_ && needed > *limit_)
    return fail(Code::over_budget,
                "the backend's own " + format_bytes(bytes) + " do not fit beside " + format_bytes(total_) + " in use: budget " +
                    format_bytes(*limit_),
                needed, *limit_);
  backend_ = bytes;
  peak_ = std::max(peak_, needed);
  return {};
}

void Ledger::set_limit(std::optional<Bytes> limit) {
  std::lock_guard lock(mutex_);
  limit_ = limit;
}

LedgerReport Ledger::report() const {
  std::lock_guard lock(mutex_);
  return {.limit = limit_, .by_use = by_use_, .total = total_, .backend = backend_, .peak = peak_};
}

void Ledger::reset_peak() {
  std::lock_guard lock(mutex_);
  peak_ = total_ + backend_;
}

void Ledger::give_back(Use use, Bytes size) {
  std::lock_guard lock(mutex_);
  auto& booked = by_use_[static_cast<std::size_t>(use)];
  assert(size <= booked && size <= total_);
  booked -= size;
  total_ -= size;
}

void Ledger::move(Use from, Use to, Bytes size) {
  std::lock_guard lock(mutex_);
  assert(size <= by_use_[static_cast<std::size_t>(from)]);
  by_use_[static_cast<std::size_t>(from)] -= size;
  by_use_[static_cast<std::size_t>(to)] += size;
}

void Ledger::share_limit() {
  Bytes sum = 0;
  limit_.reset();
  for (const Share* share : shares_) {
    // More than 2^64 bytes are no limit.
    if (!share->limit_ || !checked_add(sum, *share->limit_, sum)) return;
  }
  if (!shares_.empty()) limit_ = sum;
}

Share::Share(Ledger& ledger, std::optional<Bytes> limit) : ledger_(ledger), limit_(limit) {
  std::lock_guard lock(ledger_.mutex_);
  ledger_.shares_.push_back(this);
  ledger_.share_limit();
}

Share::~Share() {
  std::lock_guard lock(ledger_.mutex_);
  std::erase(ledger_.shares_, this);
  ledger_.backend_ -= backend_;
  ledger_.share_limit();
}

void Share::set_limit(std::optional<Bytes> limit) {
  std::lock_guard lock(ledger_.mutex_);
  limit_ = limit;
  ledger_.share_limit();
}

Status Share::set_backend(Bytes bytes) {
  std::lock_guard lock(ledger_.mutex_);
  SLUICE_TRY(ledger_.book_backend(ledger_.backend_ - backend_, bytes));
  backend_ = bytes;
  return {};
}

Bytes Share::backend() const {
  std::lock_guard lock(ledger_.mutex_);
  return backend_;
}

Lease::Lease(Lease&& other) noexcept
    : ledger_(std::exchange(other.ledger_, nullptr)), use_(other.use_), size_(std::exchange(other.size_, 0)) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    if (ledger_) ledger_->give_back(use_, size_);
    ledger_ = std::exchange(other.ledger_, nullptr);
    use_ = other.use_;
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Lease::~Lease() {
  if (ledger_) ledger_->give_back(use_, size_);
}

Lease Lease::lend(Use use, Bytes size) {
  assert(size <= size_);
  if (!ledger_) return {};
  ledger_->move(use_, use, size);
  size_ -= size;
  return Lease{ledger_, use, size};
}

void Lease::take_back(Lease lent) {
  if (!lent.ledger_) return;
  assert(lent.ledger_ == ledger_);
  ledger_->move(lent.use_, use_, lent.size_);
  size_ += std::exchange(lent.size_, 0);
}

}  // namespace sluice
