// Host versions of kernels_cu/wgmma.cuh, found before it on the include path.
//
// Products are complete at once, and nothing is checked of the fences and waits: that is left to
// the device. A warp's 16 rows of sums need its own rows of a and all of b, so it computes them
// alone.
#pragma once

inline void warpgroup_fence() {}
inline void commit_products() {}

template <int kPending>
inline void wait_for_products() {}

template <int kTiles>
inline void sums_have_arrived(float (&)[kTiles][4]) {}

inline unsigned long long matrix_descriptor(unsigned address, unsigned next_half,
                                            unsigned next_columns) {
  if (address % 16 || next_half % 16 || next_columns % 16) __builtin_trap();
  const auto field = [](unsigned bytes) { return static_cast<unsigned long long>(bytes >> 4); };
  return field(address) | field(next_half) << 16 | field(next_columns) << 32;
}

template <bool kAccumulate, int kTiles>
inline void wgmma_float16(float (&sum)[kTiles][4], const unsigned (&a)[4], unsigned long long b) {
  host::warpgroup_mma<kAccumulate, 2>(sum, a, b, [](unsigned bits, int place) {
    return static_cast<double>(
        half_bits_to_float(static_cast<unsigned short>(bits >> (16 * place))));
  });
}

template <bool kAccumulate, int kTiles>
inline void wgmma_bfloat16(float (&sum)[kTiles][4], const unsigned (&a)[4], unsigned long long b) {
  host::warpgroup_mma<kAccumulate, 2>(sum, a, b, [](unsigned bits, int place) {
    return static_cast<double>(__uint_as_float(bits >> (16 * place) << 16));
  });
}

template <bool kAccumulate, int kTiles>
inline void wgmma_tf32(float (&sum)[kTiles][4], const unsigned (&a)[4], unsigned long long b) {
  host::warpgroup_mma<kAccumulate, 1>(sum, a, b, [](unsigned bits, int) {
    return static_cast<double>(__uint_as_float(bits & ~0x1fffu));
  });
}
