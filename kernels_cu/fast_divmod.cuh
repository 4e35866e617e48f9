// Division by a constant that the host prepared: a multiplication and a shift instead of some 20
// instructions. Source of the method: Granlund and Montgomery, "Division by Invariant Integers
// using Multiplication" (PLDI 1994).
#pragma once
#include <convt3d_config.cuh>

/// A divisor d with 1 <= d < 2^31 where 32-bit indices are used, any d >= 1 with 64-bit indices.
struct FastDivmod {
  long long divisor;
  /// ceil(2^(31 + shift) / d) and ceil(log2 d): (2n * multiplier) >> (32 + shift) is n / d for
  /// 0 <= n < 2^31.
  unsigned multiplier;
  unsigned shift;
};

/// Returns dividend / by and stores the remainder.
///
/// Assumes: dividend >= 0.
__device__ inline int divmod(int dividend, const FastDivmod& by, int* remainder) {
  const int quotient =
      static_cast<int>(__umulhi(2 * static_cast<unsigned>(dividend), by.multiplier) >> by.shift);
  *remainder = dividend - quotient * static_cast<int>(by.divisor);
  return quotient;
}

__device__ inline long long divmod(long long dividend, const FastDivmod& by, long long* remainder) {
  const long long quotient = dividend / by.divisor;
  *remainder = dividend - quotient * by.divisor;
  return quotient;
}
