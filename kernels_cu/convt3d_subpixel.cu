// Deterministic transposed convolution with a stride of 2 along W on tensor cores: sub-pixel
// convolution.
//
//   y[n, co, o] = bias[co] + sum over taps k, channels ci of x[n, ci, i] * w[ci, co, k],
//                 o + padding = i*stride + k on each axis
//
// Write o = stride*q + phase. At one position q the outputs of all phases meet the same few inputs
// i = q + offset, each by a tap of its own, k = phase + padding - stride*offset. So the operation
// is a convolution of stride 1 whose channels are pairs (co, phase), and whose result is shuffled
// into place. Source: W. Shi et al., "Is the deconvolution layer the same as a convolutional
// layer?", arXiv:1609.07009 (2016).
//
//   gemm_m = (phases) x (output channels), gemm_n = positions q, gemm_k = (offsets) x (input
//   channels). Offsets at which a phase has no tap are left out along depth and height, and
//   multiplied by zeros along W.
//
//   block  co_blocks * 8 output channels of one group, of all phases x a box of rows of positions
//          (AxisParams::tile along depth and height) x a segment of positions along W
//   m tile 8 output channels x the 2 phases along W, of one phase along depth and height
//   warp   kWarpMTiles x kWarpNTiles tiles of 16 x 8 sums, of neighbouring positions of one row. A
//          fragment of x is multiplied with all m tiles of the warp that have a tap there
//   stage  one offset along depth and one k step: the box of x as [channel][plane][row][position],
//          and the packed weights of the taps that meet it (pack_subpixel.cu); `stages` of them in
//          dynamic shared memory, filled by cp.async
//   k step kStepK channels of one offset along W, or half as many of two neighbouring ones where
//          channels are few
//   sums   stay in registers: a lane has two positions of both phases along W, 4 outputs in a row
//
// A block computes one tile or several. They follow each other in one pipeline: the first inputs of
// a tile arrive while the one before it is computed and stored.
//
// Determinism: every sum is made of its offsets and channels in a fixed order, so results are
// bit-identical from run to run and for every split of the batch. Where an input does not exist,
// zeros are multiplied; a sum that came out as NaN is computed again from its definition
// (direct_sum.cuh).
// Limits: sm_80. Real dtypes; a stride of 2 along W, no dilation. Tiles fit shared memory because
// Python chooses them so.
#include <convt3d_params.cuh>
#include <direct_sum.cuh>
#include <element.cuh>
#include <epilogue.cuh>
#include <pipeline.cuh>
#include <subpixel_tile.cuh>
#include <tensor_core.cuh>
#include <tile_load.cuh>

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    convt3d_subpixel(const Element* __restrict__ x, const Element* __restrict__ weight,
                     const uint4* __restrict__ packed, const Element* __restrict__ bias,
                     Element* __restrict__ y, const __grid_constant__ Params p) {
  constexpr int kParts = TensorMath::kParts;
  constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  constexpr int kFragmentBytes = static_cast<int>(sizeof(uint4));
  unsigned char* const shared = dynamic_shared_memory();
  const GemmParams& gemm = p.gemm;
  const SubpixelParams& subpixel = p.subpixel;

  const Index in_channels = static_cast<Index>(p.in_channels);
  const Index out_channels = static_cast<Index>(p.out_channels);
  const Index output[3] = {static_cast<Index>(p.axis[0].output),
                           static_cast<Index>(p.axis[1].output),
                           static_cast<Index>(p.axis[2].output)};
  const Index output_volume = output[0] * output[1] * output[2];
  const int stride_d = static_cast<int>(p.axis[0].stride);
  const int stride_h = static_cast<int>(p.axis[1].stride);
  const int kernel_d = static_cast<int>(p.axis[0].kernel);
  const int kernel_h = static_cast<int>(p.axis[1].kernel);
  const int step_channels = subpixel.step_channels;
  const Index k_steps = (in_channels + step_channels - 1) / step_channels;
  const int steps_w = subpixel.offsets[2] / subpixel.step_offsets;
  const int block_fragments = subpixel.co_blocks * kParts * 32;  // of one step along W
  const int tap_fragments = steps_w * block_fragments;
  const long long plane_weights = static_cast<long long>(kernel_h) * tap_fragments;
  const long long step_weights = kernel_d * plane_weights;

  const int tile_h = static_cast<int>(p.axis[1].tile);
  const int rows = static_cast<int>(p.axis[0].tile) * tile_h;
  const int stage_rows_h = static_cast<int>(gemm.x.rows_h.divisor);
  const int row_bytes = gemm.x.row * kElementBytes;
  const int pitch = gemm.x.channel_pitch * kElementBytes;
  const int half = subpixel.step_offsets == 2 ? kElementBytes : TensorMath::kStepK / 2 * pitch;

  const int lane = static_cast<int>(threadIdx.x % 32);
  int warp_m;
  const int warp_n = divmod(static_cast<int>(threadIdx.x / 32), gemm.warps_m, &warp_m);

  // This warp's positions, from the first of the block.
  int row_warp;
  const int row = divmod(warp_n, subpixel.row_warps, &row_warp);
  int warp_h;
  const int warp_d = divmod(row, gemm.tile_h, &warp_h);
  const int warp_w = row_warp * (8 * kWarpNTiles);
  // Bytes inside a stage, for the first offsets. Warps past the last row multiply its first, and do
  // not store.
  int lane_offset[1] = {
      row < rows ? (warp_d * stage_rows_h + warp_h) * row_bytes + warp_w * kElementBytes : 0};
  add_lane_of_elements(lane, pitch, kElementBytes, lane_offset);

  MTile m_tile[kWarpMTiles];
#pragma unroll
  for (int m = 0; m < kWarpMTiles; ++m) m_tile[m] = m_tile_of(p, warp_m * kWarpMTiles + m);

  // What the first position meets first, moved down to a multiple of 8 for wide copies.
  const int shift = static_cast<int>(subpixel.first_offset[2] & 7);
  const BoxUnit box_unit = unit_of_box(static_cast<int>(threadIdx.x), gemm.x);
  const Accumulator empty = empty_sum(p);
  const bool vectors =
      output[2] % 4 == 0 && reinterpret_cast<unsigned long long>(y) % alignof(OutputVector<4>) == 0;

  // Unsigned: the last block may reach past 2^31.
  const UnsignedIndex tiles = static_cast<UnsignedIndex>(p.tiles);
  const UnsignedIndex tiles_of_block = (tiles - 1 - blockIdx.x) / gridDim.x + 1;
  const Index stages_of_tile = subpixel.offsets[0] * k_steps;

  Accumulator sum[kWarpMTiles][kWarpNTiles][4];
  const auto clear_sums = [&] {
#pragma unroll
    for (int m = 0; m < kWarpMTiles; ++m) {
#pragma unroll
      for (int i = 0; i < kWarpNTiles; ++i) {
#pragma unroll
        for (int r = 0; r < 4; ++r) sum[m][i][r] = empty;
      }
    }
  };

  // The tap along depth by which phase 0 meets an offset; it may not exist.
  const auto first_tap_d = [&](int offset_d) {
    return subpixel.first_tap[0] - offset_d * stride_d;
  };

  const auto load_stage = [&](const SubpixelTile& tile, const StageOfTile& k, int buffer) {
    const unsigned memory = shared_address(shared + buffer * gemm.stage_bytes);
    Box box;
    box.channel = k.step * step_channels;
    box.first[0] = tile.position[0] + static_cast<Index>(subpixel.first_offset[0]) + k.offset_d;
    box.first[1] = tile.position[1] + static_cast<Index>(subpixel.first_offset[1]);
    box.first[2] = tile.position[2] + static_cast<Index>(subpixel.first_offset[2]) - shift;
    box.rows_h = stage_rows_h;
    load_box(memory, x + tile.x_offset, gemm.x, box, box_unit, step_channels);
    const int first = first_tap_d(k.offset_d);
    const int begin = max(first, 0);
    const int end = min(first + stride_d, kernel_d);
    load_fragments(memory + gemm.stage_weights,
                   packed + tile.weights + k.step * step_weights + begin * plane_weights,
                   (end - begin) * kernel_h * tap_fragments);
  };

  const auto multiply_stage = [&](int offset_d, int buffer) {
    const unsigned stage = shared_address(shared + buffer * gemm.stage_bytes);
    const int first = first_tap_d(offset_d);
    const int begin = max(first, 0);
    // Of the m tiles: their taps along height at the first offset, none for those that have no
    // tap along depth, and their weights at tap 0 along height.
    int tap_h[kWarpMTiles];
    unsigned own_weights[kWarpMTiles];
#pragma unroll
    for (int m = 0; m < kWarpMTiles; ++m) {
      const int tap_d = first + m_tile[m].phase[0];
      const bool has_taps =
          m_tile[m].exists && static_cast<unsigned>(tap_d) < static_cast<unsigned>(kernel_d);
      tap_h[m] = has_taps ? subpixel.first_tap[1] + m_tile[m].phase[1] : -(1 << 30);
      own_weights[m] = stage + gemm.stage_weights +
                       kFragmentBytes * ((has_taps ? tap_d - begin : 0) * kernel_h * tap_fragments +
                                         m_tile[m].channel / 8 * kParts * 32 + lane);
    }
    unsigned x_row = stage + lane_offset[0] + shift * kElementBytes;
    for (int offset_h = 0; offset_h < subpixel.offsets[1]; ++offset_h) {
      bool any = false;
#pragma unroll
      for (int m = 0; m < kWarpMTiles; ++m) {
        any |= static_cast<unsigned>(tap_h[m]) < static_cast<unsigned>(kernel_h);
      }
      if (any) {
        unsigned step_x = x_row;
        for (int step_w = 0; step_w < steps_w; ++step_w) {
          TensorMath::XFragment fragment[kWarpNTiles];
          load_row(step_x, pitch, half, fragment);
#pragma unroll
          for (int m = 0; m < kWarpMTiles; ++m) {
            if (static_cast<unsigned>(tap_h[m]) >= static_cast<unsigned>(kernel_h)) continue;
            const unsigned tap_weights =
                own_weights[m] +
                kFragmentBytes * (tap_h[m] * tap_fragments + step_w * block_fragments);
            uint4 part[kParts];
#pragma unroll
            for (int i = 0; i < kParts; ++i) {
              part[i] = load_shared(tap_weights + kFragmentBytes * (i * 32), uint4());
            }
            add_products(sum[m], part, fragment);
          }
          step_x += subpixel.step_offsets * kElementBytes;
        }
      }
      x_row += row_bytes;
#pragma unroll
      for (int m = 0; m < kWarpMTiles; ++m) tap_h[m] -= stride_h;
    }
  };

  const auto store_sums = [&](const SubpixelTile& tile) {
    const Index first_w = 2 * (tile.position[2] + warp_w + lane % 4 * 2);
#pragma unroll
    for (int m = 0; m < kWarpMTiles; ++m) {
      const Index channel = tile.first_co + m_tile[m].channel + lane / 4;
      const Index at_d = (tile.position[0] + warp_d) * stride_d + m_tile[m].phase[0];
      const Index at_h = (tile.position[1] + warp_h) * stride_h + m_tile[m].phase[1];
      if (!m_tile[m].exists || channel >= out_channels || at_d >= output[0] || at_h >= output[1]) {
        continue;
      }
      const Accumulator channel_bias =
          p.has_bias ? to_accumulator(bias[tile.group * out_channels + channel]) : Accumulator(0);
      Element* const target = y + tile.y_offset +
                              ((m_tile[m].channel + lane / 4) * output_volume +
                               (at_d * output[1] + at_h) * output[2] + first_w);
#pragma unroll
      for (int i = 0; i < kWarpNTiles; ++i) {
        const Index at_w = first_w + 16 * i;
        if (at_w >= output[2]) break;
        // Positions are the columns of the sums, phases along W their upper and lower rows.
        Accumulator total[4] = {sum[m][i][0], sum[m][i][2], sum[m][i][1], sum[m][i][3]};
        // One instruction tests two sums.
        if ((total[0] != total[0]) | (total[1] != total[1]) | (total[2] != total[2]) |
            (total[3] != total[3])) {
#pragma unroll 1
          for (int e = 0; e < 4; ++e) {
            const Index at[3] = {at_d, at_h, at_w + e};
            if (at[2] >= output[2]) break;
            const Accumulator again =
                empty + direct_sum(x, weight, p, tile.n, tile.group, channel, at);
#pragma unroll
            for (int q = 0; q < 4; ++q) {
              if (q == e && total[q] != total[q]) total[q] = again;
            }
          }
        }
        // Without a bias this adds +0, to sums that began with +0 and are not -0.
        OutputVector<4> vector;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          store(&vector.value[e], finish(total[e], channel_bias, p));
        }
        if (vectors) {
          *reinterpret_cast<OutputVector<4>*>(target + 16 * i) = vector;
        } else {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (at_w + e < output[2]) target[16 * i + e] = vector.value[e];
          }
        }
      }
    }
  };

  const auto tile_of = [&](UnsignedIndex index) {
    return subpixel_tile(static_cast<Index>(index), p, k_steps, step_weights);
  };
  UnsignedIndex loaded_index = blockIdx.x;
  UnsignedIndex used_index = blockIdx.x;
  SubpixelTile loaded_tile = tile_of(loaded_index);
  StageOfTile loaded{0, 0};
  StageOfTile used{0, 0};
  clear_sums();
  run_pipeline(
      gemm.stages, static_cast<Index>(tiles_of_block) * stages_of_tile,
      [&](int buffer) {
        load_stage(loaded_tile, loaded, buffer);
        if (loaded.advance(k_steps, subpixel.offsets[0])) {
          loaded_index += gridDim.x;
          if (loaded_index < tiles) loaded_tile = tile_of(loaded_index);
        }
      },
      [&](int buffer) {
        multiply_stage(used.offset_d, buffer);
        if (used.advance(k_steps, subpixel.offsets[0])) {
          if (row < rows) store_sums(tile_of(used_index));
          clear_sums();
          used_index += gridDim.x;
        }
      });
}
