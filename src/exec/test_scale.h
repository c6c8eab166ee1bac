#pragma once

namespace sluice::test {

/// Sanitizers are some ten times slower: random tests take a sample of their cases there.
#ifdef SLUICE_SANITIZED
inline constexpr unsigned kSlow = 10;
#else
inline constexpr unsigned kSlow = 1;
#endif

}  // namespace sluice::test
