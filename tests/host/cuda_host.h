// The CUDA built-ins that the kernels use, as C++20 for g++ and clang++.
//
// Blocks run one after the other on one OS thread, so atomics are plain arithmetic. What is not
// here is not allowed in a kernel until it is added.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernel_launch.h"
#include "shared_memory.h"
#include "thread_block.h"
#include "vector_types.h"
#include "warp_matrix.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))

// The place in the source of a call, as trailing default arguments.
#define HOST_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(HOST_SITE) { host::ThreadBlock::current().wait_at_barrier({file, line}); }

inline void __syncwarp(unsigned mask = 0xffffffffu, HOST_SITE) {
  host::ThreadBlock::current().wait_at_collective(host::Collective::kSync, mask, 0, 0,
                                                  {file, line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, HOST_SITE) {
  return static_cast<unsigned>(host::ThreadBlock::current().wait_at_collective(
      host::Collective::kBallot, mask, 0, predicate != 0, {file, line}));
}

inline int __any_sync(unsigned mask, int predicate, HOST_SITE) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}

inline int __all_sync(unsigned mask, int predicate, HOST_SITE) {
  return __ballot_sync(mask, !predicate, file, line) == 0;
}

namespace host {

/// Returns `value` of lane `source`, a lane of the whole warp.
template <class T>
T shuffle(unsigned mask, T value, unsigned source, Site site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles 4 or 8 bytes");
  unsigned long long bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = ThreadBlock::current().wait_at_collective(Collective::kShuffle, mask, source, bits, site);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace host

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, HOST_SITE) {
  const int lane = static_cast<int>(host::ThreadBlock::current().lane());
  return host::shuffle(mask, value, (lane & -width) | (source & (width - 1)), {file, line});
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize, HOST_SITE) {
  const int lane = static_cast<int>(host::ThreadBlock::current().lane());
  const int other = lane ^ lane_mask;
  // A lane may read from its own segment of `width` lanes and from the ones before it.
  return host::shuffle(mask, value, other < (lane & -width) + width ? other : lane, {file, line});
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, HOST_SITE) {
  const int lane = static_cast<int>(host::ThreadBlock::current().lane());
  const int other = lane + static_cast<int>(delta);
  return host::shuffle(mask, value, other < (lane & -width) + width ? other : lane, {file, line});
}

namespace host {

/// Returns the value before the addition.
template <class T>
T add_to(T* target, T value) {
  const T before = *target;
  *target = before + value;
  return before;
}

}  // namespace host

inline float atomicAdd(float* target, float value) { return host::add_to(target, value); }
inline double atomicAdd(double* target, double value) { return host::add_to(target, value); }
inline int atomicAdd(int* target, int value) { return host::add_to(target, value); }
inline unsigned atomicAdd(unsigned* target, unsigned value) { return host::add_to(target, value); }
inline unsigned long long atomicAdd(unsigned long long* target, unsigned long long value) {
  return host::add_to(target, value);
}

template <class T>
T __ldg(const T* source) {
  return *source;
}

// No mixed types: a call that CUDA finds ambiguous must not compile here either.
inline int min(int a, int b) { return b < a ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline long long min(long long a, long long b) { return b < a ? b : a; }
inline unsigned long long min(unsigned long long a, unsigned long long b) { return b < a ? b : a; }
inline float min(float a, float b) { return std::fmin(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long long max(long long a, long long b) { return a < b ? b : a; }
inline unsigned long long max(unsigned long long a, unsigned long long b) { return a < b ? b : a; }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }

inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }

inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline long long __mul64hi(long long a, long long b) {
  return static_cast<long long>(static_cast<__int128>(a) * b >> 64);
}

namespace host {

/// Reinterprets the bits of a value.
template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace host

inline unsigned __float_as_uint(float value) { return host::bits_as<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return host::bits_as<float>(bits); }
inline int __float_as_int(float value) { return host::bits_as<int>(value); }
inline float __int_as_float(int bits) { return host::bits_as<float>(bits); }
inline long long __double_as_longlong(double value) { return host::bits_as<long long>(value); }
inline double __longlong_as_double(long long bits) { return host::bits_as<double>(bits); }
