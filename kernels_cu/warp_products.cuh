// The products of one warp of the tensor-core kernels, by mma.sync.
#pragma once
#include <convt3d_params.cuh>
#include <tensor_core.cuh>

/// Warps that multiply the same taps of the same rows.
constexpr int kWarpsTogether = 1;

/// Finds a warp's tiles: warp_m along the weights, and returns the place along the inputs.
__device__ inline int place_of_warp(int warp, const FastDivmod& warps_m, int* warp_m) {
  return divmod(warp, warps_m, warp_m);
}

/// kWarpMTiles x kWarpNTiles tiles of 16 x 8 sums of a warp.
struct WarpSums {
  /// Consecutive positions of a lane's sums in a tile.
  static constexpr int kPositions = 2;

  Accumulator sum[kWarpMTiles][kWarpNTiles][4];

  __device__ void fill(Accumulator value) {
#pragma unroll
    for (int m = 0; m < kWarpMTiles; ++m) {
#pragma unroll
      for (int i = 0; i < kWarpNTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[m][i][j] = value;
      }
    }
  }

  /// Adds the products of one k step and one tap.
  ///
  /// x        shared address of the tap's channels; offset and pitch as load_positions_of_x wants
  /// weights  shared address of the fragments of all m tiles of the block
  /// kNeighbours: the warp's tiles are neighbours in a row.
  template <bool kNeighbours = false>
  __device__ void add(unsigned x, int pitch, const int (&offset)[kWarpNTiles], unsigned weights,
                      int warp_m, int lane) {
    constexpr int kParts = TensorMath::kParts;
    TensorMath::XFragment fragment[kWarpNTiles];
    load_positions_of_x<kNeighbours>(x, pitch, offset, fragment);
    const unsigned own = weights + static_cast<unsigned>(sizeof(uint4)) *
                                       (warp_m * kWarpMTiles * kParts * 32 + lane);
#pragma unroll
    for (int m = 0; m < kWarpMTiles; ++m) {
      uint4 part[kParts];
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        part[i] = load_shared(own + static_cast<unsigned>(sizeof(uint4)) * ((m * kParts + i) * 32),
                              uint4());
      }
      add_products(sum[m], part, fragment);
    }
  }

  /// Waits for the products that were added.
  __device__ void finish() {}

  /// Returns the first row of a lane's sums in a tile.
  __device__ static int first_row(int lane) { return lane / 4; }
  /// Returns the first position of a lane's sums in a tile.
  __device__ static int first_position(int lane) { return lane % 4 * 2; }

  /// Returns a lane's sum in tile (m, i), `position` after its first one; of its first row, or of
  /// the other `half` of the tile's rows.
  __device__ Accumulator at(int m, int i, int half, int position) const {
    return sum[m][i][2 * half + position];
  }

  /// Stores the sums of the 8 positions of tile `i`.
  ///
  /// products  of the lane's first row and position; `pitch` elements from one position to the next
  __device__ void store(int i, Accumulator* products, int pitch) const {
    Accumulator* const next = products + pitch;
#pragma unroll
    for (int m = 0; m < kWarpMTiles; ++m) {
      products[16 * m] = sum[m][i][0];
      next[16 * m] = sum[m][i][1];
      products[16 * m + 8] = sum[m][i][2];
      next[16 * m + 8] = sum[m][i][3];
    }
  }
};
