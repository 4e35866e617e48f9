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
//          wgmma: 8 rows, half as many channels. A lane has one position, and the 8 lanes of a row
//          have consecutive ones.
//   rows   where the outputs of each channel of each m tile begin, and its bias: in shared memory
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

/// The outputs of one channel and tap (kd, kh) of an m tile.
struct OutputRow {
  Index place;  // in the sample and group, of position 0; negative where there is no such channel
  Accumulator bias;
};

/// Describes the output rows of consecutive m tiles, [m tile][channel of the tile].
///
/// bias  of the group
__device__ inline void find_rows(OutputRow* rows, int tiles, Index first_m, Index end_m,
                                 const Element* __restrict__ bias, const Params& p) {
  const Index out_channels = static_cast<Index>(p.out_channels);
  const Index output_h = static_cast<Index>(p.axis[1].output);
  const Index output_w = static_cast<Index>(p.axis[2].output);
  const Index output_volume = static_cast<Index>(p.axis[0].output) * output_h * output_w;
  for (int e = static_cast<int>(threadIdx.x); e < tiles * kTileChannels;
       e += static_cast<int>(blockDim.x)) {
    const Index m_tile = first_m + e / kTileChannels;
    Index co_tile;
    Index kh;
    const Index kd = divmod(divmod(m_tile, p.gemm.co_tile, &co_tile), p.gemm.taps_h, &kh);
    const Index co = co_tile * kTileChannels + e % kTileChannels;
    OutputRow row{-1, {}};
    if (m_tile < end_m && co < out_channels) {
      row.place = (kd * output_h + kh) * output_w + co * output_volume;
      if (p.has_bias) row.bias = to_accumulator(bias[co]);
    }
    rows[e] = row;
  }
}

/// The positions of a lane in each of its n tiles.
struct LanePositions {
  Index place[kWarpNTiles][WarpSums::kPositions];  // in a channel of y, of the first output
  bool exists[kWarpNTiles][WarpSums::kPositions];
};

/// Stores the outputs of a warp, kVectors: kOutputs at a time. Returns whether a sum is NaN.
///
/// rows  from the lane's first row of the warp's first m tile
/// y     of the sample and group
template <bool kVectors>
__device__ inline bool store_outputs(const WarpSums& sums, const OutputRow* rows,
                                     const LanePositions& positions, Element* y, const Params& p) {
  bool any_nan = false;
#pragma unroll
  for (int i = 0; i < kWarpMTiles; ++i) {
    // One m tile after the other: ptxas would form the outputs of all of them at once, for sm_100
    // in more registers than there are.
    __syncwarp();
    // kw = 2: one channel, outputs (position, kw). kw = 1: two channels, outputs (position).
#pragma unroll
    for (int half = 0; half < 2 / kTapsW; ++half) {
      const OutputRow row = rows[i * kTileChannels + kMTileRows / 2 * half];
#pragma unroll
      for (int j = 0; j < kWarpNTiles; ++j) {
        OutputVector<kOutputs> vector;
#pragma unroll
        for (int r = 0; r < kOutputs; ++r) {
          const Accumulator total = sums.at(i, j, kTapsW == 2 ? r % 2 : half, r / kTapsW);
          any_nan |= total != total;
          store(&vector.value[r], finish(total, row.bias, p));
        }
        const auto target = [&](int position) {
          return y + (row.place + positions.place[j][position]);
        };
        if constexpr (kVectors) {
          // Where a lane has two positions they are even in number: both exist or none.
          if (row.place >= 0 && positions.exists[j][0]) {
            *reinterpret_cast<OutputVector<kOutputs>*>(target(0)) = vector;
          }
        } else {
#pragma unroll
          for (int r = 0; r < kOutputs; ++r) {
            if (row.place >= 0 && positions.exists[j][r / kTapsW]) {
              target(r / kTapsW)[r % kTapsW] = vector.value[r];
            }
          }
        }
      }
    }
  }
  return any_nan;
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
  constexpr int kTiles = kWarpMTiles * kWarpNTiles;
  return {e / kWarpNTiles % kWarpMTiles, e % kWarpNTiles, e / kTiles % 2, e / kTiles / 2};
}

/// Computes an output again whose sum is NaN.
///
/// y, place  of the sample and group; the output's place there
__device__ inline void correct_output(Index place, Accumulator bias, Index n, Index group,
                                      const Element* __restrict__ x,
                                      const Element* __restrict__ weight, Element* y,
                                      const Params& p) {
  Index output[3];
  Index co = place;
#pragma unroll
  for (int a = 2; a >= 0; --a) {
    output[a] = co % static_cast<Index>(p.axis[a].output);
    co /= static_cast<Index>(p.axis[a].output);
  }
  store(y + place, finish(direct_sum(x, weight, p, n, group, co, output), bias, p));
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

  OutputRow* const rows =
      reinterpret_cast<OutputRow*>(shared + k_steps * TensorMath::kStepK * pitch);

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

    LanePositions positions;
    int tile_offset[kWarpNTiles];
#pragma unroll
    for (int i = 0; i < kWarpNTiles; ++i) {
      const int within = (warp_n * kWarpNTiles + i) * 8;
      tile_offset[i] = within * kElementBytes;
#pragma unroll
      for (int r = 0; r < WarpSums::kPositions; ++r) {
        const Index position = first_position + within + WarpSums::first_position(lane) + r;
        positions.exists[i][r] = position < volume;
        // The second position may lie in another row, but not where vectors are stored.
        positions.place[i][r] =
            r > 0 && vectors ? positions.place[i][0] + r * kTapsW : first_output(p, position);
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
    __syncthreads();  // the previous block of work has used its inputs and rows
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
    // The barriers of the stages make them visible.
    find_rows(rows, m_stages * stage_m, first_m, end_m, bias + group * out_channels, p);

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
          sums.add<true>(
              shared_address(shared) + (first_step + step) * TensorMath::kStepK * pitch, pitch,
              tile_offset,
              weights + static_cast<unsigned>(sizeof(uint4)) * step * stage_m * kMTilePieces,
              warp_m, lane);
        }
        sums.finish();
        buffer = buffer + 1 == gemm.stages ? 0 : buffer + 1;
      }

      const OutputRow* const lane_rows =
          rows + (static_cast<int>(m - first_m) + warp_m * kWarpMTiles) * kTileChannels +
          WarpSums::first_row(lane);
      const bool any_nan = vectors ? store_outputs<true>(sums, lane_rows, positions, group_y, p)
                                   : store_outputs<false>(sums, lane_rows, positions, group_y, p);
      if (any_nan) {
        // Not unrolled, because `direct_sum` is long: a sum is looked for among the registers.
#pragma unroll 1
        for (int e = 0; e < kSums; ++e) {
          bool is_nan = false;
#pragma unroll
          for (int q = 0; q < kSums; ++q) {
            const SumPlace at = sum_place(q);
            const Accumulator sum = sums.at(at.m, at.n, at.half, at.position);
            is_nan |= e == q && sum != sum;
          }
          if (!is_nan) continue;
          const SumPlace at = sum_place(e);
          const OutputRow row =
              lane_rows[at.m * kTileChannels + (kTapsW == 2 ? 0 : kMTileRows / 2 * at.half)];
          const Index position = first_position + (warp_n * kWarpNTiles + at.n) * 8 +
                                 WarpSums::first_position(lane) + at.position;
          if (row.place < 0 || position >= volume) continue;
          const Index place = row.place + first_output(p, position) + (kTapsW == 2 ? at.half : 0);
          correct_output(place, row.bias, n, group, x, weight, group_y, p);
        }
      }
    }
  }
}
