// How tensor cores multiply each dtype and precision: fragments of weights (A, 16 rows) and of x
// (B, 8 columns) and their products.
//
// CONVT3D_MATH: 0 float16, 1 bfloat16, 2 tf32, 3 tf32x3, 4 bf16x3, 5 float64. 16-bit floats and all
// forms of float32 sum in float32.
//
// The x3 forms split each float32 operand into hi + lo, both rounded to nearest, and add the three
// products hi*hi + hi*lo + lo*hi; the fourth, lo*lo, is below the rounding of the others. Source:
// M. Fasi, N. Higham, F. Lopez, T. Mary, M. Mikaitis, "Matrix Multiplication in Multiword
// Arithmetic: Error Analysis and Application to GPU Tensor Cores", SIAM J. Sci. Comput. 45 (2023).
// Where an operand is infinite, or rounds to infinity, lo is a NaN or an infinity of the other
// sign, so every sum it enters becomes NaN: the epilogue computes such sums again (direct_sum.cuh).
//
// In shared memory x is [channel][position] as in global memory. Its channels are spread over k so
// that the words that a warp loads at a time lie in 32 different banks where the pitch of a channel
// is 8 words modulo 32 (4-byte and 8-byte elements) or 4 modulo 32 (ldmatrix of 2-byte elements).
#pragma once
#include <element.cuh>
#include <ptx.cuh>

/// One product that makes up a multiplication: which part of the weights, which part of x.
struct Term {
  int weight;
  int x;
};

template <int kMath>
struct Math;

/// float16 and bfloat16: k = 16, channels in order.
template <bool kIsBFloat16>
struct Math16 {
  static constexpr int kStepK = 16;
  static constexpr int kLaneK = 2;  // from the first k of a lane to that of the next
  static constexpr int kParts = 1;

  static constexpr int kTerms = 1;

  struct XFragment {
    unsigned k[kParts][2];
  };

  /// Returns the fragment of the weights that `fetch(row, channel)` gives.
  template <class Fetch>
  __device__ static void pack(int lane, const Fetch& fetch, uint4 (&part)[kParts]) {
    unsigned bits[4];
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + 8 * (r % 2);
      const int channel = 2 * (lane % 4) + 8 * (r / 2);
      bits[r] = static_cast<unsigned>(fetch(row, channel).bits) |
                static_cast<unsigned>(fetch(row, channel + 1).bits) << 16;
    }
    part[0] = {bits[0], bits[1], bits[2], bits[3]};
  }

  /// Returns half of the k of one row, whose weights `fetch(channel)` gives, as wgmma wants them.
  template <class Fetch>
  __device__ static void pack_half(int half, const Fetch& fetch, uint4 (&part)[kParts]) {
    unsigned bits[4];
    for (int r = 0; r < 4; ++r) {
      const int channel = 8 * half + 2 * r;
      bits[r] = static_cast<unsigned>(fetch(channel).bits) |
                static_cast<unsigned>(fetch(channel + 1).bits) << 16;
    }
    part[0] = {bits[0], bits[1], bits[2], bits[3]};
  }

  using Bits = unsigned short;
  static constexpr int kHalves = 2;
  static constexpr int kLoads = 2;  // of a lane for one half of the k step, kLoadK apart
  static constexpr int kLoadK = 1;

  /// Sets what a half of the k step gives to a fragment, from `fetch(load)`.
  template <class Fetch>
  __device__ static void set_half(XFragment& fragment, int half, const Fetch& fetch) {
    fragment.k[0][half] = static_cast<unsigned>(fetch(0)) | static_cast<unsigned>(fetch(1)) << 16;
  }

  /// Loads the fragments of one k step at a shared address for some tiles of 8 columns that are
  /// aligned rows of 8 positions, and whose byte offsets have `add_lane_of_matrices`.
  template <int kTiles>
  __device__ static void load_matrices(unsigned x, const int (&offset)[kTiles],
                                       XFragment (&fragment)[kTiles]) {
    static_assert(kTiles % 2 == 0, "ldmatrix loads two tiles at a time");
#pragma unroll
    for (int i = 0; i < kTiles; i += 2) {
      unsigned matrix[4];
      load_matrices_transposed(matrix, x + offset[i]);
      fragment[i] = {{{matrix[0], matrix[1]}}};
      fragment[i + 1] = {{{matrix[2], matrix[3]}}};
    }
  }

  template <int kTerm>
  __device__ static void add_product(float (&sum)[4], const uint4 (&weight)[kParts],
                                     const XFragment& x) {
    if constexpr (kIsBFloat16) {
      mma_bfloat16(sum, weight[0], x.k[0]);
    } else {
      mma_float16(sum, weight[0], x.k[0]);
    }
  }
};

template <>
struct Math<0> : Math16<false> {};
template <>
struct Math<1> : Math16<true> {};

/// The three products of split operands, smallest first.
__device__ constexpr Term split_term(int term) {
  return term == 0 ? Term{1, 0} : term == 1 ? Term{0, 1} : Term{0, 0};
}

/// tf32 and tf32x3: k = 8, channels in order.
template <bool kSplit>
struct MathTf32 {
  static constexpr int kStepK = 8;
  static constexpr int kLaneK = 1;
  static constexpr int kParts = kSplit ? 2 : 1;
  static constexpr int kTerms = kSplit ? 3 : 1;

  struct XFragment {
    unsigned k[kParts][2];
  };

  template <class Fetch>
  __device__ static void pack(int lane, const Fetch& fetch, uint4 (&part)[kParts]) {
    unsigned bits[2][4];
    for (int r = 0; r < 4; ++r) {
      const float value = fetch(lane / 4 + 8 * (r % 2), lane % 4 + 4 * (r / 2));
      bits[0][r] = float_to_tf32(value);
      bits[1][r] = float_to_tf32(value - __uint_as_float(bits[0][r]));
    }
    for (int i = 0; i < kParts; ++i) part[i] = {bits[i][0], bits[i][1], bits[i][2], bits[i][3]};
  }

  template <class Fetch>
  __device__ static void pack_half(int half, const Fetch& fetch, uint4 (&part)[kParts]) {
    unsigned bits[2][4];
    for (int r = 0; r < 4; ++r) {
      const float value = fetch(4 * half + r);
      bits[0][r] = float_to_tf32(value);
      bits[1][r] = float_to_tf32(value - __uint_as_float(bits[0][r]));
    }
    for (int i = 0; i < kParts; ++i) part[i] = {bits[i][0], bits[i][1], bits[i][2], bits[i][3]};
  }

  using Bits = float;
  static constexpr int kHalves = 2;
  static constexpr int kLoads = 1;
  static constexpr int kLoadK = 0;

  template <class Fetch>
  __device__ static void set_half(XFragment& fragment, int half, const Fetch& fetch) {
    const float value = fetch(0);
    fragment.k[0][half] = float_to_tf32(value);
    if constexpr (kSplit) {
      fragment.k[1][half] = float_to_tf32(value - __uint_as_float(fragment.k[0][half]));
    }
  }

  template <int kTerm>
  __device__ static void add_product(float (&sum)[4], const uint4 (&weight)[kParts],
                                     const XFragment& x) {
    constexpr Term term = kSplit ? split_term(kTerm) : Term{0, 0};
    mma_tf32(sum, weight[term.weight], x.k[term.x], sum);
  }
};

template <>
struct Math<2> : MathTf32<false> {};
template <>
struct Math<3> : MathTf32<true> {};

/// bf16x3: k = 16; k = 2t, 2t + 1, 2t + 8, 2t + 9 are the channels t, t + 4, t + 8, t + 12.
template <>
struct Math<4> {
  static constexpr int kStepK = 16;
  static constexpr int kLaneK = 1;
  static constexpr int kParts = 2;
  static constexpr int kTerms = 3;

  struct XFragment {
    unsigned k[kParts][2];
  };

  /// Splits two floats into pairs of bfloat16.
  __device__ static void split(float low, float high, unsigned* hi, unsigned* lo) {
    *hi = floats_to_bfloat16x2(low, high);
    *lo = floats_to_bfloat16x2(low - __uint_as_float(*hi << 16),
                               high - __uint_as_float(*hi & 0xffff0000u));
  }

  template <class Fetch>
  __device__ static void pack(int lane, const Fetch& fetch, uint4 (&part)[kParts]) {
    unsigned hi[4];
    unsigned lo[4];
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + 8 * (r % 2);
      const int channel = lane % 4 + 8 * (r / 2);
      split(fetch(row, channel), fetch(row, channel + 4), &hi[r], &lo[r]);
    }
    part[0] = {hi[0], hi[1], hi[2], hi[3]};
    part[1] = {lo[0], lo[1], lo[2], lo[3]};
  }

  template <class Fetch>
  __device__ static void pack_half(int half, const Fetch& fetch, uint4 (&part)[kParts]) {
    unsigned hi[4];
    unsigned lo[4];
    for (int r = 0; r < 4; ++r) {
      const int channel = 8 * half + r;
      split(fetch(channel), fetch(channel + 4), &hi[r], &lo[r]);
    }
    part[0] = {hi[0], hi[1], hi[2], hi[3]};
    part[1] = {lo[0], lo[1], lo[2], lo[3]};
  }

  using Bits = float;
  static constexpr int kHalves = 2;
  static constexpr int kLoads = 2;
  static constexpr int kLoadK = 4;

  template <class Fetch>
  __device__ static void set_half(XFragment& fragment, int half, const Fetch& fetch) {
    split(fetch(0), fetch(1), &fragment.k[0][half], &fragment.k[1][half]);
  }

  template <int kTerm>
  __device__ static void add_product(float (&sum)[4], const uint4 (&weight)[kParts],
                                     const XFragment& x) {
    constexpr Term term = split_term(kTerm);
    mma_bfloat16(sum, weight[term.weight], x.k[term.x]);
  }
};

/// float64: k = 4, two products of 8 rows.
template <>
struct Math<5> {
  static constexpr int kStepK = 4;
  static constexpr int kLaneK = 1;
  static constexpr int kParts = 1;
  static constexpr int kTerms = 1;

  using XFragment = double;

  template <class Fetch>
  __device__ static void pack(int lane, const Fetch& fetch, uint4 (&part)[kParts]) {
    unsigned bits[4];
    for (int r = 0; r < 2; ++r) {
      const long long value = __double_as_longlong(fetch(lane / 4 + 8 * r, lane % 4));
      bits[2 * r] = static_cast<unsigned>(value);
      bits[2 * r + 1] = static_cast<unsigned>(value >> 32);
    }
    part[0] = {bits[0], bits[1], bits[2], bits[3]};
  }

  using Bits = double;
  static constexpr int kHalves = 1;
  static constexpr int kLoads = 1;
  static constexpr int kLoadK = 0;

  template <class Fetch>
  __device__ static void set_half(XFragment& fragment, int, const Fetch& fetch) {
    fragment = fetch(0);
  }

  __device__ static double join(unsigned low, unsigned high) {
    return __longlong_as_double(
        static_cast<long long>(static_cast<unsigned long long>(high) << 32 | low));
  }

  template <int kTerm>
  __device__ static void add_product(double (&sum)[4], const uint4 (&weight)[kParts],
                                     const XFragment& x) {
    mma_float64(sum[0], sum[1], join(weight[0].x, weight[0].y), x);
    mma_float64(sum[2], sum[3], join(weight[0].z, weight[0].w), x);
  }
};

using TensorMath = Math<CONVT3D_MATH>;

/// Rows of an m tile of weights.
constexpr int kMTileRows = kWarpgroups ? 8 : 16;
/// Threads that pack an m tile, each 16 bytes of every part.
constexpr int kPackingLanes = 2 * kMTileRows;
/// Pieces of 16 bytes of an m tile: [part][lane], for wgmma [part][half of the k][column].
constexpr int kMTilePieces = TensorMath::kParts * kPackingLanes;

/// Returns what `lane` packs of the weights that `fetch(row, channel)` gives.
template <class Fetch, class Mma = TensorMath>
__device__ inline void pack_weights(int lane, const Fetch& fetch, uint4 (&part)[Mma::kParts]) {
  if constexpr (kWarpgroups) {
    // Of 8 columns of matrix B a lane of wgmma has the sums of 2t and 2t + 1. They are the rows t
    // and t + 4 of the m tile.
    const int row = lane / 16 * 8 + lane % 2 * 4 + lane % 8 / 2;
    Mma::pack_half(lane / 8 % 2, [&](int channel) { return fetch(row, channel); }, part);
  } else {
    Mma::pack(lane, fetch, part);
  }
}

/// Adds to the byte offsets of some tiles of 8 columns what `load_elements` wants of this lane.
///
/// k_pitch, column_pitch  bytes from one k, and from one column, to the next
template <int kTiles>
__device__ inline void add_lane_of_elements(int lane, int k_pitch, int column_pitch,
                                            int (&offset)[kTiles]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    offset[i] += lane % 4 * TensorMath::kLaneK * k_pitch + lane / 4 * column_pitch;
  }
}

/// Loads the fragments of one k step at a shared address, element by element, for some tiles of 8
/// columns, whose byte offsets have `add_lane_of_elements`.
///
/// k_pitch  bytes from one k to the next, inside a half of the k step
/// half     bytes from the first half to the second
template <int kTiles, class Mma = TensorMath>
__device__ inline void load_elements(unsigned x, int k_pitch, int half, const int (&offset)[kTiles],
                                     typename Mma::XFragment (&fragment)[kTiles]) {
#pragma unroll
  for (int r = 0; r < Mma::kHalves; ++r) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      Mma::set_half(fragment[i], r, [&](int load) {
        return load_shared(x + r * half + load * Mma::kLoadK * k_pitch + offset[i],
                           typename Mma::Bits());
      });
    }
  }
}

/// The same for tiles that are neighbours in a row, from the shared address of this lane's first
/// element up.
template <int kTiles, int kTile = 0, class Mma = TensorMath>
__device__ inline void load_row(unsigned x, int k_pitch, int half,
                                typename Mma::XFragment (&fragment)[kTiles]) {
  if constexpr (kTile < kTiles) {
    // A constant distance costs no instruction.
    constexpr int kOffset = kTile * 8 * static_cast<int>(sizeof(typename Mma::Bits));
#pragma unroll
    for (int r = 0; r < Mma::kHalves; ++r) {
      Mma::set_half(fragment[kTile], r, [&](int load) {
        return load_shared<kOffset>(x + r * half + load * Mma::kLoadK * k_pitch,
                                    typename Mma::Bits());
      });
    }
    load_row<kTiles, kTile + 1, Mma>(x, k_pitch, half, fragment);
  }
}

/// The same for `TensorMath::load_matrices`: the lower half of the warp gives the rows of one tile,
/// the upper half those of the next.
template <int kTiles>
__device__ inline void add_lane_of_matrices(int lane, int k_pitch, int (&offset)[kTiles]) {
#pragma unroll
  for (int i = 0; i < kTiles; i += 2) {
    offset[i] = lane % 16 * k_pitch + (lane < 16 ? offset[i] : offset[i + 1]);
  }
}

/// Adds to the byte offsets of some tiles of 8 positions of x, which begin at multiples of 16
/// bytes, what `load_positions_of_x` wants of this lane.
///
/// pitch  bytes from one channel to the next
template <int kTiles>
__device__ inline void add_lane_of_positions(int lane, int pitch, int (&offset)[kTiles]) {
  if constexpr (sizeof(Element) == 2) {
    add_lane_of_matrices(lane, pitch, offset);
  } else {
    add_lane_of_elements(lane, pitch, static_cast<int>(sizeof(Element)), offset);
  }
}

/// Loads the fragments of one k step of x, at a shared address, for these tiles.
///
/// kNeighbours: they are neighbours in a row.
template <bool kNeighbours, int kTiles, class Mma = TensorMath>
__device__ inline void load_positions_of_x(unsigned x, int pitch, const int (&offset)[kTiles],
                                           typename Mma::XFragment (&fragment)[kTiles]) {
  if constexpr (sizeof(Element) == 2) {
    Mma::load_matrices(x, offset, fragment);
  } else if constexpr (kNeighbours) {
    load_row(x + offset[0], pitch, Mma::kStepK / 2 * pitch, fragment);
  } else {
    load_elements<kTiles, Mma>(x, pitch, Mma::kStepK / 2 * pitch, offset, fragment);
  }
}

/// Adds weight * x to the sums of a row of tiles, the products of one k step as a sum of their own.
///
/// Tensor cores truncate sums, and the errors of many truncations of a large sum all go one way.
/// The sum of one k step is small, and is added to the large one with rounding to nearest.
template <int kTiles>
__device__ inline void add_products_rounded(float (&sum)[kTiles][4], const uint4 (&weight)[2],
                                            const MathTf32<true>::XFragment (&x)[kTiles]) {
  const float zero[4] = {};
  float step[kTiles][4];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) mma_tf32(step[i], weight[1], x[i].k[0], zero);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) mma_tf32(step[i], weight[0], x[i].k[1], step[i]);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) mma_tf32(step[i], weight[0], x[i].k[0], step[i]);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int r = 0; r < 4; ++r) sum[i][r] += step[i][r];
  }
}

/// Adds weight * x to the sums of a row of tiles, term by term, so that no two products in a row go
/// to the same sum.
template <int kTiles, int kTerm = 0>
__device__ inline void add_products(Accumulator (&sum)[kTiles][4],
                                    const uint4 (&weight)[TensorMath::kParts],
                                    const TensorMath::XFragment (&x)[kTiles]) {
  if constexpr (kTerm == 0 && CONVT3D_MATH == 3) {
    add_products_rounded(sum, weight, x);
  } else if constexpr (kTerm < TensorMath::kTerms) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) TensorMath::add_product<kTerm>(sum[i], weight, x[i]);
    add_products<kTiles, kTerm + 1>(sum, weight, x);
  }
}
