// The products of a warpgroup of the tensor-core kernels, by wgmma: weights (matrix B) from shared
// memory, where all rows of the block share them, x (matrix A) from registers, which leaves NCDHW
// as it is and lets every warp have rows of its own.
//
// A block of products is 64 inputs x 8*kWarpMTiles weights: tiles 2j and 2j + 1 of each of the four
// warps are its rows. While one block is multiplied, the warps load the x of the next.
#pragma once
#include <convt3d_params.cuh>
#include <tensor_core.cuh>
#include <wgmma.cuh>

constexpr int kWarpsTogether = 4;

/// Finds a warp's tiles: warp_m along the weights, and returns the place along the inputs.
__device__ inline int place_of_warp(int warp, const FastDivmod& warpgroups_m, int* warpgroup_m) {
  return divmod(warp / 4, warpgroups_m, warpgroup_m) * 4 + warp % 4;
}

/// A lane's sums, and its part of a warpgroup's products.
struct WarpSums {
  using Mma = TensorMath;
  static constexpr int kBlocks = kWarpNTiles / 2;
  static constexpr int kPositions = 1;
  static_assert(kWarpNTiles % 2 == 0, "a warp has 16 rows of a block");

  float sum[kBlocks][kWarpMTiles][4];

  __device__ void fill(float value) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int m = 0; m < kWarpMTiles; ++m) {
#pragma unroll
        for (int r = 0; r < 4; ++r) sum[block][m][r] = value;
      }
    }
  }

  template <bool kNeighbours = false>
  __device__ void add(unsigned x, int pitch, const int (&offset)[kWarpNTiles], unsigned weights,
                      int warp_m, int) {
    constexpr unsigned kPieces = 256 * Mma::kParts;  // of 8 rows: [part][half of k][row]
    const unsigned own = weights + warp_m * kWarpMTiles * kPieces;
    unsigned long long part[Mma::kParts];
#pragma unroll
    for (int i = 0; i < Mma::kParts; ++i) {
      part[i] = matrix_descriptor(own + 256 * i, 128, kPieces);
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int tiles[2] = {offset[2 * block], offset[2 * block + 1]};
      Mma::XFragment fragment[2];
      load_positions_of_x<kNeighbours>(x, pitch, tiles, fragment);
      add_block(sum[block], part, fragment);
    }
  }

  __device__ void finish() {
    wait_for_products<0>();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) sums_have_arrived(sum[block]);
  }

  __device__ static int first_row(int lane) { return lane % 4; }
  __device__ static int first_position(int lane) { return lane / 4; }

  __device__ float at(int m, int i, int half, int) const {
    return sum[i / 2][m][2 * (i % 2) + half];
  }

  __device__ void store(int i, float* products, int) const {
#pragma unroll
    for (int m = 0; m < kWarpMTiles; ++m) {
      // A lane's rows (pack_weights) are such that 32 lanes store to 32 banks.
      products[8 * m] = sum[i / 2][m][2 * (i % 2)];
      products[8 * m + 4] = sum[i / 2][m][2 * (i % 2) + 1];
    }
  }

 private:
  template <bool kAccumulate>
  __device__ static void multiply(float (&sum)[kWarpMTiles][4], const unsigned (&x)[4],
                                  unsigned long long weight) {
    if constexpr (CONVT3D_MATH == 0) {
      wgmma_float16<kAccumulate>(sum, x, weight);
    } else if constexpr (Mma::kStepK == 16) {
      wgmma_bfloat16<kAccumulate>(sum, x, weight);
    } else {
      wgmma_tf32<kAccumulate>(sum, x, weight);
    }
  }

  /// Starts sum = (kAccumulate ? sum : 0) + x * weight, term by term.
  ///
  /// weight  descriptors of the parts
  template <bool kAccumulate, int kTerm = 0>
  __device__ static void start_terms(float (&sum)[kWarpMTiles][4],
                                     const unsigned long long (&weight)[Mma::kParts],
                                     const Mma::XFragment (&x)[2]) {
    if constexpr (kTerm < Mma::kTerms) {
      constexpr Term term = Mma::kTerms == 3 ? split_term(kTerm) : Term{0, 0};
      const auto& first = x[0].k[term.x];
      const auto& second = x[1].k[term.x];
      const unsigned a[4] = {first[0], second[0], first[1], second[1]};
      multiply<kAccumulate || (kTerm > 0)>(sum, a, weight[term.weight]);
      start_terms<kAccumulate, kTerm + 1>(sum, weight, x);
    }
  }

  /// Adds the products of a block. Its registers of x are free for the next block but
  /// kBlocks - 1, its sums complete after `finish`.
  __device__ static void add_block(float (&sum)[kWarpMTiles][4],
                                   const unsigned long long (&weight)[Mma::kParts],
                                   const Mma::XFragment (&x)[2]) {
    if constexpr (CONVT3D_MATH == 3) {
      // As in add_products_rounded (tensor_core.cuh).
      float step[kWarpMTiles][4];
      warpgroup_fence();
      start_terms<false>(step, weight, x);
      commit_products();
      wait_for_products<0>();
      sums_have_arrived(step);
#pragma unroll
      for (int m = 0; m < kWarpMTiles; ++m) {
#pragma unroll
        for (int r = 0; r < 4; ++r) sum[m][r] += step[m][r];
      }
    } else {
      warpgroup_fence();
      start_terms<true>(sum, weight, x);
      commit_products();
      wait_for_products<kBlocks - 1>();
    }
  }
};
