// Thin wrappers over the warpgroup instructions of compute capability 9.0 (wgmma).
//
// Like ptx.cuh one instruction per function, with a host version of the same name in the test
// suite. A warpgroup is four consecutive warps, the first of which is a multiple of four; its
// threads call these functions together. Source: PTX ISA, "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions".
#pragma once
#include <convt3d_config.cuh>
#include <wgmma_operands.cuh>

/// Orders this thread's accesses to registers before the wgmma that follow and use them.
__device__ inline void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Closes the group of the wgmma that were started since the last call.
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most kPending groups of wgmma are under way.
template <int kPending>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from using sums before the wait that precedes.
template <int kTiles>
__device__ inline void sums_have_arrived(float (&sum)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int r = 0; r < 4; ++r) asm volatile("" : "+f"(sum[i][r])::"memory");
  }
}

/// Describes a matrix B in shared memory, stored as 8 x 16-byte pieces: 8 columns, half of a k
/// step each, 16 bytes from one column to the next.
///
/// next_half, next_columns  bytes to the piece of the other half, and to that of the next 8 columns
__device__ inline unsigned long long matrix_descriptor(unsigned address, unsigned next_half,
                                                       unsigned next_columns) {
  const auto field = [](unsigned bytes) { return static_cast<unsigned long long>(bytes >> 4); };
  return field(address) | field(next_half) << 16 | field(next_columns) << 32;
}

/// Four sums of a lane for each 8 columns: rows g and g + 8 of the warp's 16, columns 2t and 2t + 1
/// in lane 4g + t; first row g, then g + 8. a is as in mma_tf32 or mma_float16 (ptx.cuh), b what
/// `matrix_descriptor` returns. sum = (kAccumulate ? sum : 0) + a * b.
#define CONVT3D_WGMMA(NAME, SHAPE_K, TYPES, FLAGS)                                            \
  template <bool kAccumulate>                                                                 \
  __device__ inline void NAME(float (&sum)[kWarpMTiles][4], const unsigned (&a)[4],           \
                              unsigned long long b) {                                         \
    asm volatile("{\n.reg .pred accumulate;\nsetp.ne.s32 accumulate, " CONVT3D_LAST           \
                 ", 0;\n"                                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" CONVT3D_COLUMNS SHAPE_K ".f32." TYPES    \
                 " {" CONVT3D_NUMBERS "}, " CONVT3D_FACTORS ", accumulate, 1, 1" FLAGS ";\n}" \
                 : CONVT3D_OPERANDS                                                           \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                        \
                   "n"(static_cast<int>(kAccumulate)));                                       \
  }

/// 64 x 8*kWarpMTiles x 16.
CONVT3D_WGMMA(wgmma_float16, "k16", "f16.f16", ", 0")
CONVT3D_WGMMA(wgmma_bfloat16, "k16", "bf16.bf16", ", 0")
/// 64 x 8*kWarpMTiles x 8.
CONVT3D_WGMMA(wgmma_tf32, "k8", "tf32.tf32", "")
