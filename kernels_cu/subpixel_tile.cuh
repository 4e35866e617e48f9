// What a block of the sub-pixel kernel computes at a time, and in which order.
#pragma once
#include <convt3d_params.cuh>

/// What a block computes at a time.
struct SubpixelTile {
  Index n;
  Index group;
  Index first_co;      // within the group
  Index position[3];   // the first
  long long weights;   // fragments before those of the tile's channels
  long long x_offset;  // of the first channel of the sample and group
  long long y_offset;  // of the first output channel
};

__device__ inline SubpixelTile subpixel_tile(Index index, const Params& p, Index k_steps,
                                             long long step_weights) {
  const GemmParams& gemm = p.gemm;
  SubpixelTile tile;
  Index co_tile;
  Index segment;
  Index box[2];
  // Output channels vary fastest: neighbouring blocks read the same inputs.
  Index rest = divmod(index, gemm.co_tiles, &co_tile);
  rest = divmod(rest, gemm.segments, &segment);
  rest = divmod(rest, gemm.boxes[1], &box[1]);
  rest = divmod(rest, gemm.boxes[0], &box[0]);
  tile.n = divmod(rest, gemm.groups, &tile.group);
  tile.first_co = co_tile * (8 * p.subpixel.co_blocks);
  tile.position[0] = box[0] * static_cast<Index>(p.axis[0].tile);
  tile.position[1] = box[1] * static_cast<Index>(p.axis[1].tile);
  tile.position[2] = segment * static_cast<Index>(p.axis[2].tile);

  tile.weights = (tile.group * p.co_tiles + co_tile) * k_steps * step_weights;
  const long long first_plane = tile.n * p.groups + tile.group;
  tile.x_offset = first_plane * p.in_channels *
                  (static_cast<Index>(p.axis[0].input) * static_cast<Index>(p.axis[1].input) *
                   static_cast<Index>(p.axis[2].input));
  tile.y_offset = (first_plane * p.out_channels + tile.first_co) *
                  (static_cast<Index>(p.axis[0].output) * static_cast<Index>(p.axis[1].output) *
                   static_cast<Index>(p.axis[2].output));
  return tile;
}

/// Which part of gemm_k a stage holds: k steps inside, offsets along depth outside.
struct StageOfTile {
  int offset_d;
  Index step;

  /// Goes to the next stage, and returns whether that is the first of another tile.
  __device__ bool advance(Index k_steps, int offsets_d) {
    if (++step < k_steps) return false;
    step = 0;
    if (++offset_d < offsets_d) return false;
    offset_d = 0;
    return true;
  }
};

/// An m tile of a warp.
struct MTile {
  int phase[2];
  int channel;  // of the block, the first of its 8
  bool exists;
};

__device__ inline MTile m_tile_of(const Params& p, int index) {
  MTile tile;
  int phase;
  const int co_block = divmod(index, p.subpixel.phases, &phase);
  tile.phase[0] = divmod(phase, p.subpixel.phases_h, &tile.phase[1]);
  tile.channel = 8 * co_block;
  tile.exists = co_block < p.subpixel.co_blocks;
  return tile;
}
