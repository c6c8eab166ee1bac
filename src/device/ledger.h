#pragma once

#include <array>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace sluice {

/// What leased bytes are used for. The sums by kind are what reports print.
enum class Use {
  arena,      ///< allocated by an arena, not (now) lent to anything
  weights,    ///< resident blocks
  slots,      ///< blocks passing through
  state,      ///< what crosses block boundaries
  workspace,  ///< a block graph's inner nodes
  cache,      ///< droppable tensors a session keeps
  mapped,     ///< weights used in place from a file mapping (host-memory devices only)
  staging,    ///< host buffers on their way to a device (host ledgers only)
  images,     ///< host copies of block images (host ledgers only)
};
inline constexpr std::size_t kUses = 9;
std::string_view use_name(Use use);

/// Sums in bytes; `backend` is what the driver took itself (pools, pipelines, work buffers), measured and booked, never leased.
struct LedgerReport {
  std::optional<Bytes> limit;  ///< none: unlimited
  std::array<Bytes, kUses> by_use{};
  Bytes total = 0;  ///< sum of by_use
  Bytes backend = 0;
  Bytes peak = 0;  ///< highest total + backend so far
};

class Lease;
class Share;

/// The books of one physical device (or of the host's pageable or pinned memory). Every byte is leased before it is allocated;
/// total + backend never exceeds the limit. Thread safe. Outlives its leases.
class Ledger {
 public:
  explicit Ledger(std::optional<Bytes> limit = std::nullopt) : limit_(limit) {}
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  /// Books `size` bytes. Errors: over_budget with needed = total + backend + size and available = limit.
  Result<Lease> reserve(Use use, Bytes size);
  /// Sets the measured backend account. Errors: over_budget when it no longer fits beside the leases (nothing is changed then).
  Status set_backend(Bytes bytes);
  /// A new limit; may be below what is booked (then every reserve fails until enough is returned).
  void set_limit(std::optional<Bytes> limit);
  LedgerReport report() const;
  void reset_peak();

 private:
  friend class Lease;
  friend class Share;
  void share_limit();                            // with the lock held
  Status book_backend(Bytes others, Bytes own);  // with the lock held
  void give_back(Use use, Bytes size);
  void move(Use from, Use to, Bytes size);

  mutable std::mutex mutex_;
  std::optional<Bytes> limit_;
  std::array<Bytes, kUses> by_use_{};
  Bytes total_ = 0, backend_ = 0, peak_ = 0;
  std::vector<const Share*> shares_;
};

/// One user's part of a ledger that several users of a device share: a limit and a backend account of its own. As long as there
/// are shares, the ledger's limit is their sum (none, if one of them has none), so what one user may take does not depend on
/// who else came or went; each keeps within its own limit by planning. Outlived by its ledger. Thread safe as the ledger is.
class Share {
 public:
  Share(Ledger& ledger, std::optional<Bytes> limit);
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;
  /// Its backend account goes with it. Where no share is left, the ledger is unlimited.
  ~Share();
  /// As Ledger::set_limit, for this share.
  void set_limit(std::optional<Bytes> limit);
  /// As Ledger::set_backend, for what this user's backend took.
  Status set_backend(Bytes bytes);
  Bytes backend() const;

 private:
  friend class Ledger;
  Ledger& ledger_;
  std::optional<Bytes> limit_;
  Bytes backend_ = 0;
};

/// Bytes on a ledger, given back when it goes. Movable, not copyable.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease();
  Bytes size() const { return size_; }
  /// Cuts `size` bytes (≤ this->size()) off as a lease of another use: the total stays as it is.
  Lease lend(Use use, Bytes size);
  /// Takes a lent lease back under this one's use.
  void take_back(Lease lent);

 private:
  friend class Ledger;
  Lease(Ledger* ledger, Use use, Bytes size) : ledger_(ledger), use_(use), size_(size) {}
  Ledger* ledger_ = nullptr;
  Use use_ = Use::arena;
  Bytes size_ = 0;
};

}  // namespace sluice
