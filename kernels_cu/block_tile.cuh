// What a block of the implicit GEMM computes: its tile, the taps that it needs, and the order of
// its stages.
#pragma once
#include <convt3d_params.cuh>
#include <residue_class.cuh>
#include <tensor_core.cuh>

/// A tap interval [begin, end) of one axis, of those of the phase.
struct Taps {
  Index begin;
  Index end;
};

/// Returns the taps, of the first `count` of a phase, that meet an input of a range which begins at
/// `lowest` for tap 0 and has `extent` inputs.
__device__ inline Taps taps_in_reach(const AxisParams& axis, Index count, Index lowest,
                                     Index extent) {
  Taps taps{0, 0};
  // Tap j meets inputs from lowest - j*input_step up: those from `end` on are all below the input,
  // those before `begin` all above.
  Index remainder;
  if (lowest + extent > 0) {
    taps.end = min(count, 1 + divmod(lowest + extent - 1, axis.input_step_divmod, &remainder));
  }
  const Index above = lowest - static_cast<Index>(axis.input);
  if (above >= 0) {
    taps.begin = min(taps.end, 1 + divmod(above, axis.input_step_divmod, &remainder));
  }
  return taps;
}

/// Returns the steps along the input channels.
__device__ inline Index k_steps_of(const Params& p) {
  return (static_cast<Index>(p.in_channels) + TensorMath::kStepK - 1) / TensorMath::kStepK;
}

/// Returns the fragments of one k step and one tap along height.
__device__ inline int step_fragments(const Params& p) {
  return p.gemm.m_tiles * TensorMath::kParts * 32;
}

/// The taps along W that a block multiplies at a time.
struct TapSlice {
  long long weights;  // fragments before those of tap 0 of the phase
  Index index;
  Index first_tap;
  Index end_tap;
  Index first_input;  // along W that the outputs meet by them, moved down to a multiple of 8
  Index stages;       // 0 if there is none
};

/// What a block computes at a time, without gaps, which loads of several fields would take along
/// unwritten. Worked out by one thread: the others only read it.
struct alignas(16) BlockTile {
  Index n;
  Index group;
  Index first_co;     // within the group
  Index output[3];    // coordinates of the first
  Index lowest[2];    // inputs that its row meets at tap 0 of the phase, along depth and height
  Taps taps[2];       // of the phase
  Index taps_h;       // of the phase along height, whether they meet an input or not
  Index stages;       // of a slice of the taps along W
  long long weights;  // fragments before those of tap 0 of the phase, of the first slice
  long long slice_fragments;  // of weights
  long long x_offset;         // of the first channel of the sample and group
  long long y_offset;         // of the first output channel
  Index output_volume;
  Index first_bias;
  // Of a pass of the epilogue: its rows, for each part of the channels, and all places of those.
  int lines;
  int items;
  int co_count;  // output channels, at most co_tile
  // Whether the taps of the outputs are to be found: with one slice and one segment those of the
  // block's previous tile are still right.
  int finds_taps;
  TapSlice slice;  // of the implicit GEMM, which describes it by itself
};
static_assert(sizeof(BlockTile) <= 256, "cupy_convt3d/_plan_implicit_gemm.py keeps 256 bytes");

/// Output channels vary fastest, then segments and phases: neighbouring blocks read the same inputs
/// and write neighbouring rows.
__device__ inline BlockTile block_tile(Index index, const Params& p) {
  const GemmParams& gemm = p.gemm;
  BlockTile tile;
  Index co_tile;
  Index rest = divmod(index, gemm.co_tiles, &co_tile);
  Index segment;
  rest = divmod(rest, gemm.segments, &segment);
  Index phase_index[2];
#pragma unroll
  for (int a = 1; a >= 0; --a) rest = divmod(rest, gemm.phases[a], &phase_index[a]);
  Phase phase[2];
#pragma unroll
  for (int a = 1; a >= 0; --a) {
    const AxisParams& axis = p.axis[a];
    const Index size = static_cast<Index>(axis.tile);
    Index box;
    rest = divmod(rest, gemm.boxes[a], &box);
    phase[a] = phase_of_axis(axis, phase_index[a]);
    tile.output[a] = phase_index[a] + box * size * static_cast<Index>(axis.stride);
    const Index input_stride = static_cast<Index>(axis.input_stride);
    tile.lowest[a] = phase[a].origin + box * size * input_stride;
    tile.taps[a] =
        taps_in_reach(axis, phase[a].taps, tile.lowest[a], (size - 1) * input_stride + 1);
  }
  tile.n = divmod(rest, gemm.groups, &tile.group);
  tile.first_co = co_tile * static_cast<Index>(gemm.co_tile.divisor);
  tile.co_count = static_cast<int>(min(static_cast<Index>(gemm.co_tile.divisor),
                                       static_cast<Index>(p.out_channels) - tile.first_co));
  tile.output[2] = segment * static_cast<Index>(gemm.segment.divisor);
  tile.taps_h = phase[1].taps;
  Index remainder;
  tile.stages = (tile.taps[0].end - tile.taps[0].begin) * gemm.stages_c *
                divmod(tile.taps[1].end - tile.taps[1].begin +
                           static_cast<Index>(gemm.stage_taps_h.divisor) - 1,
                       gemm.stage_taps_h, &remainder);

  // Taps along height of the phases that are packed before this one.
  Index longer_phases;
  const Index least_taps =
      divmod(static_cast<Index>(p.axis[1].kernel), p.axis[1].tap_step_divmod, &longer_phases);
  const Index taps_before =
      phase[1].first_tap * least_taps + min(phase[1].first_tap, longer_phases);
  tile.slice_fragments = p.axis[0].kernel * p.axis[1].kernel * k_steps_of(p) * step_fragments(p);
  tile.weights =
      (tile.group * p.co_tiles + co_tile) * p.axis[2].tap_slices * tile.slice_fragments +
      (phase[0].first_tap * p.axis[1].kernel + taps_before) * step_fragments(p) * k_steps_of(p);
  const long long first_plane = tile.n * p.groups + tile.group;
  tile.x_offset = first_plane * p.in_channels *
                  (static_cast<Index>(p.axis[0].input) * static_cast<Index>(p.axis[1].input) *
                   static_cast<Index>(p.axis[2].input));
  tile.output_volume = static_cast<Index>(p.axis[0].output) * static_cast<Index>(p.axis[1].output) *
                       static_cast<Index>(p.axis[2].output);
  tile.y_offset = (first_plane * p.out_channels + tile.first_co) * tile.output_volume;
  tile.first_bias = tile.group * static_cast<Index>(p.out_channels) + tile.first_co;
  int last_channels;
  tile.lines = divmod(tile.co_count + static_cast<int>(gemm.sum_channels.divisor) - 1,
                      gemm.sum_channels, &last_channels) *
               static_cast<int>(gemm.pass_rows.divisor);
  tile.items = tile.lines * static_cast<int>(gemm.row_places.divisor);
  tile.finds_taps = index == static_cast<Index>(blockIdx.x) || p.axis[2].tap_slices > 1 ||
                    gemm.segments.divisor > 1;
  return tile;
}

/// Returns a slice of the taps along W.
__device__ inline TapSlice tap_slice(const Params& p, const BlockTile& tile, Index slice) {
  const AxisParams& axis = p.axis[2];
  const Index padding = static_cast<Index>(axis.padding);
  const Index dilation = static_cast<Index>(axis.dilation);
  const Index size = static_cast<Index>(axis.tap_slice);
  TapSlice taps;
  taps.index = slice;
  taps.first_tap = slice * size;
  taps.end_tap = min(taps.first_tap + size, static_cast<Index>(axis.kernel));
  const Index end_output = min(tile.output[2] + static_cast<Index>(p.gemm.segment.divisor),
                               static_cast<Index>(axis.output));
  const Index lowest = tile.output[2] + padding - (taps.end_tap - 1) * dilation;
  const Index highest = end_output - 1 + padding - taps.first_tap * dilation;
  Index remainder;
  // A multiple of 8 for wide copies.
  taps.first_input = divmod(max(lowest, static_cast<Index>(0)), axis.stride_divmod, &remainder) &
                     ~static_cast<Index>(7);
  const bool has_inputs = taps.first_input < static_cast<Index>(axis.input) && highest >= 0;
  taps.stages = has_inputs ? tile.stages : 0;
  taps.weights = tile.weights + slice * tile.slice_fragments;
  return taps;
}

/// Returns the coordinates of the first output of a row of a block.
__device__ inline void output_of_row(const Params& p, const BlockTile& tile, int row,
                                     Index (&at)[3]) {
  int h;
  const int d = divmod(row, p.gemm.tile_h, &h);
  at[0] = tile.output[0] + d * static_cast<Index>(p.axis[0].stride);
  at[1] = tile.output[1] + h * static_cast<Index>(p.axis[1].stride);
  at[2] = tile.output[2];
}

/// The box of output rows that some warps have tiles of.
struct WarpRows {
  int last[2];             // along depth and height
  UnsignedIndex reach[2];  // inputs, and rows less one

  /// Returns whether any of the rows meets an input, where the first row of the block meets
  /// `lowest`, which may lie outside.
  __device__ bool meet_input(int axis, Index lowest) const {
    return static_cast<UnsignedIndex>(lowest + last[axis]) < reach[axis];
  }
};

/// Returns the box of rows of a range of tiles of 8 inputs, one that meets no input if they are
/// past the last row.
///
/// rows  of the block
__device__ inline WarpRows rows_of_tiles(const Params& p, int first_tile, int tiles, int rows) {
  const GemmParams& gemm = p.gemm;
  const int tile_h = static_cast<int>(gemm.tile_h.divisor);
  int place;
  const int first = divmod(first_tile, gemm.row_tiles, &place);
  const int last = min(rows - 1, divmod(first_tile + tiles - 1, gemm.row_tiles, &place));
  if (first > last) return {};
  int first_h;
  int last_h;
  const int first_d = divmod(first, gemm.tile_h, &first_h);
  const int last_d = divmod(last, gemm.tile_h, &last_h);
  if (first_d < last_d) {
    // From one plane to the next: the rows up to the last of a plane, and those from its first.
    first_h = 0;
    last_h = tile_h - 1;
  }
  return {{last_d, last_h},
          {static_cast<UnsignedIndex>(static_cast<Index>(p.axis[0].input) + last_d - first_d),
           static_cast<UnsignedIndex>(static_cast<Index>(p.axis[1].input) + last_h - first_h)}};
}

/// Which part of gemm_k a stage holds: tap of the phase along depth, k step, taps along height.
struct StageOfK {
  Index tap_d;
  Index step;
  Index tap_h;

  __device__ void advance(const Taps& taps_h, Index stage_taps_h, int stage_steps, Index k_steps) {
    tap_h += stage_taps_h;
    if (tap_h < taps_h.end) return;
    tap_h = taps_h.begin;
    step += stage_steps;
    if (step < k_steps) return;
    step = 0;
    ++tap_d;
  }
};
