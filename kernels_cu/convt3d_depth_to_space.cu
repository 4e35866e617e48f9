// Deterministic transposed convolution on tensor cores where kernel == stride and padding is 0, as
// in the up-sampling layers of most 3-D U-Nets: no two inputs meet, so each output is one product
// over the input channels.
//
//   y[n, co, d*KD + kd, h*KH + kh, w*KW + kw] = bias[co] + sum over ci of x[n, ci, d, h, w] *
//                                               w[ci, co, kd, kh, kw]
//
// As a GEMM, for one group: gemm_m = (kd, kh) x (output channels) x (kw), gemm_n = input positions
// (d, h, w), gemm_k = input channels. Its result is stored with the taps interleaved (depth to
// space).
//
//   block  axis[2].tile consecutive positions of one sample and group, whose inputs stay in shared
//          memory as [channel][position], x a range of the m tiles
//   warp   kWarpMTiles x kWarpNTiles tiles of 16 x 8 products at a time, with CONVT3D_WARPGROUPS of
//          8 x 8, multiplied by wgmma (warpgroup_products.cuh)
//   stage  packed weights (pack_depth_to_space.cu) of warps_m * kWarpMTiles m tiles and stage_steps
//          k steps; `stages` of them in shared memory, filled by cp.async
//   m tile 16 rows. kw = 2: rows 0 to 7 are 8 output channels at kw = 0, rows 8 to 15 the same at
//          kw = 1, so that the 4 sums of a lane are 4 consecutive outputs and the 4 lanes of a row
//          fill whole sectors. kw = 1: 16 output channels, 2 consecutive outputs to a lane.
//          wgmma: half as many rows and channels. A lane has one position, 8 lanes are consecutive.
//
// x is read once for each range of m tiles, y written once, in full sectors.
// Determinism: one fixed sum for each output, so results are bit-identical from run to run and for
// every split of the batch. A sum that came out as NaN is computed again from its definition
// (direct_sum.cuh).
// Limits: sm_80, wgmma sm_90a. Real dtypes. Kernel == stride, at most 2 along width; padding and
// output padding 0; dilation 1. All input channels of a position tile fit shared memory.
#include <convt3d_params.cuh>
#include <direct_sum.cuh>
#include <element.cuh>
#include <epilogue.cuh>
#include <tensor_core.cuh>
#include <tile_load.cuh>
#if CONVT3D_WARPGROUPS
#include <warpgroup_products.cuh>
#else
#include <warp_products.cuh>
#endif

/// Taps along width: of the kernel, and of an m tile.
constexpr int kTapsW = CONVT3D_TAPS_W;
constexpr int kTileChannels = kMTileRows / kTapsW;
/// Consecutive outputs of a lane.
constexpr int kOutputs = WarpSums::kPositions * kTapsW;

/// Returns the place, in a channel of y, of the first output of an input position.
__device__ inline Index first_output(const Params& p, Index position) {
  Index w;
  Index h;
  const Index d = divmod(divmod(position, p.axis[2].positions, &w), p.axis[1].positions, &h);
  return (d * static_cast<Index>(p.axis[0].stride) * static_cast<Index>(p.axis[1].output) +
          h * static_cast<Index>(p.axis[1].stride)) *
             static_cast<Index>(p.axis[2].output) +
         w * kTapsW;
}

/// Loads all channels of a tile of consecutive positions as [channel][position]; zeros past the
/// last position and the last channel.
///
/// channels  of the tile, a multiple of kStepK
__device__ inline void load_positions(Element* tile, const Element* __restrict__ x, const Params& p,
                                      Index first, Index volume, int channels) {
  const BoxCopy& copy = p.gemm.x;
  const int copies = static_cast<int>(copy.copies.divisor);
  const int threads = static_cast<int>(blockDim.x);
  const int together = copy.copy_channels;
  for (int e = static_cast<int>(threadIdx.x); e < copies * together; e += threads) {
    int unit;
    const int channel = divmod(e, copy.copies, &unit);
    const Index position = first + unit * copy.copy_elements;
    const bool inside = position < volume;
    const int target = channel * copy.channel_pitch + unit * copy.copy_elements;
    copy_channels(shared_address(tile + target), inside ? x + channel * volume + position : x,
                  inside, channel, static_cast<int>(p.in_channels), channels, copy);
  }
}

/// One m tile: which taps and output channels its rows are.
struct MTile {
  Index kd;
  Index kh;
  Index first_co;
};

__device__ inline MTile m_tile_at(Index index, const Params& p) {
  MTile tile;
  Index co_tile;
  const Index tap = divmod(index, p.gemm.co_tile, &co_tile);
  tile.kd = divmod(tap, p.gemm.taps_h, &tile.kh);
  tile.first_co = co_tile * kTileChannels;
  return tile;
}

/// Which of a lane's sums: the tile, the half of its rows, the position after the lane's first.
struct SumPlace {
  int m;
  int n;
  int half;
  int position;
};

/// Sums of a lane.
constexpr int kSums = kWarpMTiles * kWarpNTiles * 2 * WarpSums::kPositions;

__device__ constexpr SumPlace sum_place(int e) {
  constexpr int kPositions = WarpSums::kPositions;
  return {e / kPositions / 2 / kWarpNTiles, e / kPositions / 2 % kWarpNTiles, e / kPositions % 2,
          e % kPositions};
}

/// Computes an output again whose sum is NaN.
///
/// row       of the m tile
/// position  of the input in its sample
__device__ inline void correct_output(Element* y, const Element* __restrict__ x,
                                      const Element* __restrict__ weight,
                                      const Element* __restrict__ bias, const Params& p, Index n,
                                      Index group, const MTile& tile, int row, Index position) {
  const Index out_channels = static_cast<Index>(p.out_channels);
  const Index co = tile.first_co + row % kTileChannels;
  if (co >= out_channels) return;
  Accumulator offset{};
  if (p.has_bias) offset = to_accumulator(bias[group * out_channels + co]);
  const Index tap[3] = {tile.kd, tile.kh, row / kTileChannels};
  Index output[3];
  Index rest = position;
#pragma unroll
  for (int a = 2; a >= 0; --a) {
    Index input;
    rest = divmod(rest, p.axis[a].positions, &input);
    output[a] = input * static_cast<Index>(p.axis[a].stride) + tap[a];
  }
  Index place = co;
#pragma unroll
  for (int a = 0; a < 3; ++a) place = place * static_cast<Index>(p.axis[a].output) + output[a];
  store(y + place, finish(direct_sum(x, weight, p, n, group, co, output), offset, p));
}

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    convt3d_depth_to_space(const Element* __restrict__ x, const Element* __restrict__ weight,
                           const uint4* __restrict__ packed, const Element* __restrict__ bias,
                           Element* __restrict__ y, const __grid_constant__ Params p) {
  constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  unsigned char* const shared = dynamic_shared_memory();
  const GemmParams& gemm = p.gemm;

  const Index in_channels = static_cast<Index>(p.in_channels);
  const Index out_channels = static_cast<Index>(p.out_channels);
  const Index groups = static_cast<Index>(p.groups);
  const Index volume = static_cast<Index>(p.axis[0].input * p.axis[1].input * p.axis[2].input);
  const Index output_h = static_cast<Index>(p.axis[1].output);
  const Index output_w = static_cast<Index>(p.axis[2].output);
  const Index output_volume = static_cast<Index>(p.axis[0].output) * output_h * output_w;
  const int tile_positions = static_cast<int>(p.axis[2].tile);
  const int pitch = gemm.x.channel_pitch * kElementBytes;
  const int k_steps = static_cast<int>((in_channels + TensorMath::kStepK - 1) / TensorMath::kStepK);
  const int k_stages = (k_steps + gemm.stage_steps - 1) / gemm.stage_steps;
  const int stage_m = static_cast<int>(gemm.warps_m.divisor) * kWarpMTiles;
  const Index m_tiles = static_cast<Index>(gemm.m_tiles);
  // Vectors start at multiples of their size if rows do: a row has kTapsW * input outputs.
  const bool vectors = p.axis[2].input % WarpSums::kPositions == 0 &&
                       reinterpret_cast<unsigned long long>(y) % 16 == 0;

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  int warp_m;
  const int warp_n = place_of_warp(warp, gemm.warps_m, &warp_m);

  for (long long block = blockIdx.x; block < p.tiles; block += gridDim.x) {
    // Ranges of m tiles vary fastest: neighbouring blocks read the same inputs.
    Index rest = static_cast<Index>(block);
    const Index m_part = rest % static_cast<Index>(p.co_tiles);
    rest /= static_cast<Index>(p.co_tiles);
    const Index first_position =
        rest % static_cast<Index>(p.axis[2].tiles) * static_cast<Index>(tile_positions);
    rest /= static_cast<Index>(p.axis[2].tiles);
    const Index group = rest % groups;
    const Index n = rest / groups;
    const Element* const sample =
        x + static_cast<long long>(n * groups + group) * (in_channels * volume);
    const uint4* const group_weights =
        packed + static_cast<long long>(group) * m_tiles * k_steps * kMTilePieces;
    Element* const group_y =
        y + static_cast<long long>(n * groups + group) * (out_channels * output_volume);
    const Index first_m = m_part * static_cast<Index>(gemm.part_m_tiles);
    const Index end_m = min(first_m + static_cast<Index>(gemm.part_m_tiles), m_tiles);

    // The positions of this lane in each of its tiles, as the places of their first outputs.
    Index place[kWarpNTiles][WarpSums::kPositions];
    bool exists[kWarpNTiles][WarpSums::kPositions];
    int tile_offset[kWarpNTiles];
#pragma unroll
    for (int i = 0; i < kWarpNTiles; ++i) {
      const int within = (warp_n * kWarpNTiles + i) * 8;
      tile_offset[i] = within * kElementBytes;
#pragma unroll
      for (int r = 0; r < WarpSums::kPositions; ++r) {
        const Index position = first_position + within + WarpSums::first_position(lane) + r;
        exists[i][r] = position < volume;
        // The second position may lie in another row, but not where vectors are stored.
        place[i][r] = r > 0 && vectors ? place[i][0] + r * kTapsW : first_output(p, position);
      }
    }
    add_lane_of_positions(lane, pitch, tile_offset);

    const auto load_stage = [&](Index m, int k_stage, int buffer) {
      uint4* const target =
          reinterpret_cast<uint4*>(shared + gemm.stage_weights + buffer * gemm.stage_bytes);
      const int first_step = k_stage * gemm.stage_steps;
      const int steps = min(gemm.stage_steps, k_steps - first_step);
      const int tiles = static_cast<int>(min(static_cast<Index>(stage_m), end_m - m));
      // As [step][m tile] in both memories.
      for (int step = 0; step < steps; ++step) {
        uint4* const of_step = target + step * stage_m * kMTilePieces;
        load_fragments(shared_address(of_step),
                       group_weights + ((first_step + step) * static_cast<long long>(m_tiles) + m) *
                                           kMTilePieces,
                       tiles * kMTilePieces);
        // Tiles past the last are multiplied like the others, and not stored.
        for (int e = tiles * kMTilePieces + static_cast<int>(threadIdx.x);
             e < stage_m * kMTilePieces; e += static_cast<int>(blockDim.x)) {
          of_step[e] = uint4{};
        }
      }
    };

    const int m_stages = static_cast<int>((end_m - first_m + stage_m - 1) / stage_m);
    const int stage_count = m_stages * k_stages;
    __syncthreads();  // the previous block of work has used its inputs
    load_positions(reinterpret_cast<Element*>(shared), sample, p, first_position, volume,
                   k_steps * TensorMath::kStepK);
    Index loaded_m = first_m;
    int loaded_k = 0;
    const auto load_next = [&](int buffer) {
      load_stage(loaded_m, loaded_k, buffer);
      if (++loaded_k == k_stages) {
        loaded_k = 0;
        loaded_m += stage_m;
      }
    };
    for (int s = 0; s < gemm.stages - 1; ++s) {
      if (s < stage_count) load_next(s);
      commit_copies();
    }

    int buffer = 0;
    int stage = 0;
    for (Index m = first_m; m < end_m; m += stage_m) {
      WarpSums sums;
      sums.fill(EmptySum<Accumulator>::value());
      for (int k_stage = 0; k_stage < k_stages; ++k_stage, ++stage) {
        if (gemm.stages == 2) {
          wait_for_copies<0>();
        } else {
          wait_for_copies<1>();
        }
        if constexpr (kWarpgroups) fence_async_proxy();
        // The stage has arrived for all threads, and all have used the buffer that is filled next.
        __syncthreads();
        if (stage + gemm.stages - 1 < stage_count) {
          load_next(buffer == 0 ? gemm.stages - 1 : buffer - 1);
        }
        commit_copies();
        const int first_step = k_stage * gemm.stage_steps;
        const int steps = min(gemm.stage_steps, k_steps - first_step);
        const unsigned weights =
            shared_address(shared + gemm.stage_weights + buffer * gemm.stage_bytes);
        for (int step = 0; step < steps; ++step) {
          sums.add(shared_address(shared) + (first_step + step) * TensorMath::kStepK * pitch, pitch,
                   tile_offset,
                   weights + static_cast<unsigned>(sizeof(uint4)) * step * stage_m * kMTilePieces,
                   warp_m, lane);
        }
        sums.finish();
        buffer = buffer + 1 == gemm.stages ? 0 : buffer + 1;
      }

      const auto sum_at = [&](const SumPlace& at) {
        return sums.at(at.m, at.n, at.half, at.position);
      };
      bool any_nan = false;
#pragma unroll
      for (int i = 0; i < kWarpMTiles; ++i) {
        const Index m_tile = m + warp_m * kWarpMTiles + i;
        if (m_tile >= end_m) break;
        const MTile tile = m_tile_at(m_tile, p);
        Element* const of_taps = group_y + (tile.kd * output_h + tile.kh) * output_w;
        // kw = 2: one channel, outputs (position, kw). kw = 1: two channels, outputs (position).
#pragma unroll
        for (int half = 0; half < 2 / kTapsW; ++half) {
          const Index co = tile.first_co + WarpSums::first_row(lane) + kMTileRows / 2 * half;
          if (co >= out_channels) break;
          Accumulator offset{};
          if (p.has_bias) offset = to_accumulator(bias[group * out_channels + co]);
          Element* const of_channel = of_taps + co * output_volume;
#pragma unroll
          for (int j = 0; j < kWarpNTiles; ++j) {
            OutputVector<kOutputs> vector;
#pragma unroll
            for (int r = 0; r < kOutputs; ++r) {
              const Accumulator total = sum_at({i, j, kTapsW == 2 ? r % 2 : half, r / kTapsW});
              any_nan |= total != total;
              store(&vector.value[r], finish(total, offset, p));
            }
            if (vectors) {
              // Where a lane has two positions they are even in number: both exist or none.
              if (exists[j][0]) {
                *reinterpret_cast<OutputVector<kOutputs>*>(of_channel + place[j][0]) = vector;
              }
            } else {
#pragma unroll
              for (int r = 0; r < kOutputs; ++r) {
                if (!exists[j][r / kTapsW]) continue;
                of_channel[place[j][r / kTapsW] + r % kTapsW] = vector.value[r];
              }
            }
          }
        }
      }
      if (any_nan) {
        // Not unrolled, because `direct_sum` is long: a sum is looked for among the registers.
#pragma unroll 1
        for (int e = 0; e < kSums; ++e) {
          bool is_nan = false;
#pragma unroll
          for (int q = 0; q < kSums; ++q) {
            const Accumulator sum = sum_at(sum_place(q));
            is_nan |= e == q && sum != sum;
          }
          if (!is_nan) continue;
          const SumPlace at = sum_place(e);
          const Index m_tile = m + warp_m * kWarpMTiles + at.m;
          const int row = WarpSums::first_row(lane) + kMTileRows / 2 * at.half;
          const Index position = first_position + (warp_n * kWarpNTiles + at.n) * 8 +
                                 WarpSums::first_position(lane) + at.position;
          if (m_tile >= end_m || position >= volume) continue;
          correct_output(group_y, x, weight, bias, p, n, group, m_tile_at(m_tile, p), row,
                         position);
        }
      }
    }
  }
}
