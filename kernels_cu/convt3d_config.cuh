// Turns the -D options of a variant into constants and types; defaults let a .cu compile alone.
//
// Options: CONVT3D_DTYPE (0 float16, 1 bfloat16, 2 float32, 3 float64, 4 complex64, 5 complex128),
// CONVT3D_INDEX_BITS (32 or 64), CONVT3D_TILE_CI, CONVT3D_TILE_CO, CONVT3D_TILE_TAPS and
// CONVT3D_TILE_POSITIONS (the register tile of one thread), CONVT3D_MATH (how tensor cores
// multiply, tensor_core.cuh), CONVT3D_WARP_M_TILES and CONVT3D_WARP_N_TILES (16 x 8 tiles of sums
// of one warp), CONVT3D_WARPGROUPS (whether warpgroups multiply, by wgmma: tiles are then 8 x 8),
// CONVT3D_SUM_CHANNELS (output channels that the implicit GEMM's epilogue sums at a time),
// CONVT3D_TAPS_W (taps along width of the depth-to-space kernel), CONVT3D_ACTIVATION (one of the
// constants below, epilogue.cuh), CONVT3D_PARAMS_SIZE (bytes of Params, as Python counts them).
#pragma once

#ifndef CONVT3D_DTYPE
#define CONVT3D_DTYPE 2
#endif
#ifndef CONVT3D_INDEX_BITS
#define CONVT3D_INDEX_BITS 32
#endif
#ifndef CONVT3D_TILE_CO
#define CONVT3D_TILE_CO 4
#endif
#ifndef CONVT3D_TILE_CI
#define CONVT3D_TILE_CI 4
#endif
#ifndef CONVT3D_TILE_TAPS
#define CONVT3D_TILE_TAPS 4
#endif
#ifndef CONVT3D_TILE_POSITIONS
#define CONVT3D_TILE_POSITIONS 4
#endif
#ifndef CONVT3D_MATH
#define CONVT3D_MATH 3
#endif
#ifndef CONVT3D_WARP_M_TILES
#define CONVT3D_WARP_M_TILES 2
#endif
#ifndef CONVT3D_WARP_N_TILES
#define CONVT3D_WARP_N_TILES 4
#endif
#ifndef CONVT3D_WARPGROUPS
#define CONVT3D_WARPGROUPS 0
#endif
#ifndef CONVT3D_SUM_CHANNELS
#define CONVT3D_SUM_CHANNELS 8
#endif
#ifndef CONVT3D_TAPS_W
#define CONVT3D_TAPS_W 2
#endif
#ifndef CONVT3D_ACTIVATION
#define CONVT3D_ACTIVATION 0
#endif

/// Picks one of two types at compile time.
template <bool kFirst, class First, class Second>
struct Choose {
  using type = First;
};
template <class First, class Second>
struct Choose<false, First, Second> {
  using type = Second;
};

/// Signed index of an element: 32 bits unless an offset or coordinate of the problem needs more.
using Index = Choose<CONVT3D_INDEX_BITS == 32, int, long long>::type;
/// For range checks: a negative Index becomes larger than every extent.
using UnsignedIndex = Choose<CONVT3D_INDEX_BITS == 32, unsigned, unsigned long long>::type;

constexpr int kTileCo = CONVT3D_TILE_CO;
constexpr int kTileCi = CONVT3D_TILE_CI;
constexpr int kTileTaps = CONVT3D_TILE_TAPS;
constexpr int kTilePositions = CONVT3D_TILE_POSITIONS;
constexpr int kWarpMTiles = CONVT3D_WARP_M_TILES;
constexpr int kWarpNTiles = CONVT3D_WARP_N_TILES;
constexpr bool kWarpgroups = CONVT3D_WARPGROUPS;
constexpr int kSumChannels = CONVT3D_SUM_CHANNELS;

/// What is applied to every output; cupy_convt3d/_activation.py has the same numbers.
constexpr int kNoActivation = 0;
constexpr int kRelu = 1;
constexpr int kLeakyRelu = 2;
constexpr int kGelu = 3;
constexpr int kSilu = 4;
constexpr int kActivation = CONVT3D_ACTIVATION;
static_assert(kNoActivation <= kActivation && kActivation <= kSilu, "no such activation");

/// Threads of a block at most; also what __launch_bounds__ promises the compiler.
constexpr int kMaxThreads = 256;
