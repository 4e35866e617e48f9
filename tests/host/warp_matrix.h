// What the lanes of a warp do together on matrices: the products and transposed loads of ptx.cuh.
#pragma once
#include <array>
#include <cmath>
#include <cstring>

#include "shared_memory.h"
#include "thread_block.h"
#include "vector_types.h"

namespace host {

/// Lets every lane of a warp read what the others show, after one barrier.
///
/// Lanes write to two places in turn: none can be two steps ahead of another, so what it
/// overwrites has been read.
template <class T>
class WarpView {
 public:
  explicit WarpView(const T& own) {
    const unsigned warp = threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    const unsigned turn = turns_[warp][lane]++ % 2;
    shown_ = shown_by_warp_[warp][turn];
    shown_[lane] = own;
    ThreadBlock::current().wait_at_collective(Collective::kSync, 0xffffffffu, 0, 0,
                                              {__FILE__, __LINE__});
  }

  const T& operator[](int lane) const { return shown_[lane]; }

 private:
  T* shown_;
  static inline T shown_by_warp_[32][2][32];
  static inline unsigned turns_[32][32];
};

/// Truncates the sum of an instruction to float, as tensor cores do.
inline float truncate_to_float(double sum) {
  float rounded = static_cast<float>(sum);
  if (std::isfinite(sum) && std::fabs(static_cast<double>(rounded)) > std::fabs(sum)) {
    rounded = std::nextafter(rounded, 0.0f);
  }
  return rounded;
}

/// The elements of a lane's fragments, register by register.
template <int kPerRegister>
struct Fragments {
  double a[4 * kPerRegister];
  double b[2 * kPerRegister];
};

/// 16 x 8 x kK: kPerRegister elements in each register, which `element` converts to double. The sum
/// of one instruction and its accumulator is taken in double, in the order of k.
template <int kK, int kPerRegister, class Convert>
inline void mma(float (&sum)[4], uint4 a, const unsigned (&b)[2], Convert element) {
  Fragments<kPerRegister> own;
  const unsigned a_registers[4] = {a.x, a.y, a.z, a.w};
  for (int place = 0; place < kPerRegister; ++place) {
    for (int r = 0; r < 4; ++r) own.a[r * kPerRegister + place] = element(a_registers[r], place);
    for (int r = 0; r < 2; ++r) own.b[r * kPerRegister + place] = element(b[r], place);
  }
  const WarpView<Fragments<kPerRegister>> warp(own);
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  for (int i = 0; i < 4; ++i) {
    const int row_half = i / 2;
    const int column = 2 * t + i % 2;
    double total = sum[i];
    for (int half = 0; half < 2; ++half) {
      for (int lane = 0; lane < kK / 2 / kPerRegister; ++lane) {
        const double* left = warp[4 * g + lane].a + (row_half + 2 * half) * kPerRegister;
        const double* right = warp[4 * column + lane].b + half * kPerRegister;
        for (int place = 0; place < kPerRegister; ++place) total += left[place] * right[place];
      }
    }
    sum[i] = truncate_to_float(total);
  }
}

/// The 16 rows of a warp of 64 x 8*kTiles x (8*kPerRegister). `b` describes 8 x 16-byte pieces in
/// shared memory (matrix_descriptor).
template <bool kAccumulate, int kPerRegister, int kTiles, class Convert>
inline void warpgroup_mma(float (&sum)[kTiles][4], const unsigned (&a)[4], unsigned long long b,
                          Convert element) {
  constexpr int kHalf = 4 * kPerRegister;  // k of a piece
  using Rows = std::array<double, 4 * kPerRegister>;
  Rows own;
  for (int r = 0; r < 4; ++r) {
    for (int place = 0; place < kPerRegister; ++place) {
      own[r * kPerRegister + place] = element(a[r], place);
    }
  }
  const WarpView<Rows> warp(own);
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  const auto field = [&](int first_bit) {
    return static_cast<unsigned>(b >> first_bit & 0x3fffu) << 4;
  };
  for (int i = 0; i < kTiles; ++i) {
    for (int r = 0; r < 4; ++r) {
      double total = kAccumulate ? sum[i][r] : 0.0;
      for (int half = 0; half < 2; ++half) {
        const unsigned char* const row = SharedMemory::dynamic() + field(0) + half * field(16) +
                                         i * field(32) + 16 * (2 * t + r % 2);
        for (int k = 0; k < kHalf; ++k) {
          unsigned bits;
          std::memcpy(&bits, row + k / kPerRegister * 4, sizeof bits);
          const double left =
              warp[4 * g + k / kPerRegister][(r / 2 + 2 * half) * kPerRegister + k % kPerRegister];
          total += left * element(bits, k % kPerRegister);
        }
      }
      sum[i][r] = truncate_to_float(total);
    }
  }
}

}  // namespace host
