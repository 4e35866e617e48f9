// Deterministic gradient of the input on tensor cores: implicit GEMM, im2col along W by shifted
// loads.
//
//   grad_input[n, ci, i] = sum over taps k, channels co of
//                          w[ci, co, k] * grad_output[n, co, i*stride + k*dilation - padding]
//
// Params describes it as the correlation that it is (residue_class.cuh, weight_layout.cuh):
// grad_output is x, grad_input is y, and the channels co are those that are summed over.
//
//   gemm_m = channels ci, gemm_n = positions of grad_input, gemm_k = (kd, kh, kw) x channels co. No
//   product is wasted on a stride or a dilation.
//
//   block  co_tile channels ci of one group x a box of rows of grad_input (AxisParams::tile along
//          depth and height) x a segment of positions along W
//   warp   kWarpMTiles x kWarpNTiles tiles of 16 x 8 sums; 8 positions of one row to a tile
//   stage  kStepK channels co, one kd, stage_taps_h kh and all kw: the box of grad_output as
//          [channel][plane][row][position], each element loaded once for all kh, kw and positions,
//          and the packed weights (pack_weight.cu, a slice for each kw) as [kw][kh]; `stages` of
//          them in dynamic shared memory, filled by cp.async. A fragment of tap kw is loaded
//          stride*position + kw*dilation elements into a row
//   sums   stay in registers and are stored from there
//
// Determinism: every sum is made of its stages, taps and channels in a fixed order, so results are
// bit-identical from run to run and for every split of the batch. Where grad_output does not exist,
// zeros are multiplied, or nothing; a sum that came out as NaN is computed again from its
// definition (direct_sum.cuh).
// Limits: sm_80. Real dtypes. Tiles fit shared memory because Python chooses them so.
#include <block_tile.cuh>
#include <convt3d_params.cuh>
#include <direct_sum.cuh>
#include <element.cuh>
#include <epilogue.cuh>
#include <pipeline.cuh>
#include <tensor_core.cuh>
#include <tile_load.cuh>

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    convt3d_grad_input_implicit_gemm(const Element* __restrict__ grad_output,
                                     const Element* __restrict__ weight,
                                     const uint4* __restrict__ packed,
                                     Element* __restrict__ grad_input,
                                     const __grid_constant__ Params p) {
  constexpr int kParts = TensorMath::kParts;
  constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  constexpr unsigned kFragmentBytes = static_cast<unsigned>(sizeof(uint4));
  unsigned char* const shared = dynamic_shared_memory();
  const GemmParams& gemm = p.gemm;

  const Index out_channels = static_cast<Index>(p.out_channels);
  const Index extent[3] = {static_cast<Index>(p.axis[0].output),
                           static_cast<Index>(p.axis[1].output),
                           static_cast<Index>(p.axis[2].output)};
  const Index k_steps = k_steps_of(p);
  const int kernel_w = static_cast<int>(p.axis[2].kernel);
  const int dilation_w = static_cast<int>(p.axis[2].dilation);
  const int stride_h = static_cast<int>(p.axis[1].input_stride);
  const int stride_w = static_cast<int>(p.axis[2].input_stride);
  const int tap_rows = static_cast<int>(p.axis[1].input_step);  // from one kh to the next
  const int tile_h = static_cast<int>(p.axis[1].tile);
  const int rows = static_cast<int>(p.axis[0].tile) * tile_h;
  const int stage_rows_h = static_cast<int>(gemm.x.rows_h.divisor);
  const int row_bytes = gemm.x.row * kElementBytes;
  const int pitch = gemm.x.channel_pitch * kElementBytes;
  const Index stage_taps_h = static_cast<Index>(gemm.stage_taps_h.divisor);
  const int fragments = step_fragments(p);

  const int lane = static_cast<int>(threadIdx.x % 32);
  int warp_m;
  const int warp_n = divmod(static_cast<int>(threadIdx.x / 32), gemm.warps_m, &warp_m);

  int tile_offset[kWarpNTiles];  // bytes inside a stage, for the last taps along height and width
#pragma unroll
  for (int i = 0; i < kWarpNTiles; ++i) {
    int place;
    const int row = divmod(warp_n * kWarpNTiles + i, gemm.row_tiles, &place);
    int h;
    const int d = divmod(row, gemm.tile_h, &h);
    // Tiles past the last row are multiplied like the first, and not stored.
    tile_offset[i] = row < rows ? (d * stage_rows_h + h * stride_h) * row_bytes +
                                      8 * place * stride_w * kElementBytes
                                : 0;
  }
  add_lane_of_elements(lane, pitch, stride_w * kElementBytes, tile_offset);

  const BoxUnit box_unit = unit_of_box(static_cast<int>(threadIdx.x), gemm.x);

  BlockTile* const shared_tile = reinterpret_cast<BlockTile*>(shared + gemm.block_tile);
  // Unsigned: the last block may reach past 2^31.
  const UnsignedIndex tiles = static_cast<UnsignedIndex>(p.tiles);
  for (UnsignedIndex index = blockIdx.x; index < tiles; index += gridDim.x) {
    __syncthreads();  // the stages and the description of the previous tile have been used
    if (threadIdx.x == 0) {
      *shared_tile = block_tile(static_cast<Index>(index), p);
    }
    __syncthreads();  // the description is complete
    const BlockTile tile = *shared_tile;
    const Taps taps_h = tile.taps[1];
    // What the first position meets at the last tap, moved down to a multiple of 8 for wide copies.
    const Index lowest_w = static_cast<Index>(p.axis[2].origin) + tile.output[2] * stride_w -
                           (kernel_w - 1) * static_cast<Index>(dilation_w);
    const Index first_w = lowest_w & ~static_cast<Index>(7);
    const int shift_bytes = static_cast<int>(lowest_w - first_w) * kElementBytes;

    Accumulator sum[kWarpMTiles][kWarpNTiles][4] = {};

    const auto load_stage = [&](const StageOfK& k, int buffer) {
      const unsigned memory = shared_address(shared + buffer * gemm.stage_bytes);
      const int taps = static_cast<int>(min(stage_taps_h, taps_h.end - k.tap_h));
      Box box;
      box.channel = k.step * TensorMath::kStepK;
      box.first[0] = tile.lowest[0] - k.tap_d * static_cast<Index>(p.axis[0].input_step);
      box.first[1] = tile.lowest[1] - (k.tap_h + taps - 1) * tap_rows;
      box.first[2] = first_w;
      box.rows_h = (tile_h - 1) * stride_h + (taps - 1) * tap_rows + 1;
      load_box(memory, grad_output + tile.x_offset, gemm.x, box, box_unit, TensorMath::kStepK);
      const unsigned target = memory + gemm.stage_weights;
      const uint4* const source =
          packed + tile.weights +
          static_cast<long long>((k.tap_d * k_steps + k.step) * tile.taps_h + k.tap_h) * fragments;
      for (int kw = 0; kw < kernel_w; ++kw) {
        load_fragments(target + kFragmentBytes * (kw * taps * fragments),
                       source + kw * tile.slice_fragments, taps * fragments);
      }
    };

    const auto multiply_stage = [&](const StageOfK& k, int buffer) {
      const unsigned stage = shared_address(shared + buffer * gemm.stage_bytes);
      const unsigned own_weights = stage + static_cast<unsigned>(gemm.stage_weights) +
                                   kFragmentBytes * (warp_m * kWarpMTiles * kParts * 32 + lane);
      const int taps = static_cast<int>(min(stage_taps_h, taps_h.end - k.tap_h));
      for (int tap = 0; tap < taps; ++tap) {
        const unsigned tap_row = stage + shift_bytes + (taps - 1 - tap) * tap_rows * row_bytes;
        for (int kw = 0; kw < kernel_w; ++kw) {
          TensorMath::XFragment fragment[kWarpNTiles];
          load_elements(tap_row + (kernel_w - 1 - kw) * dilation_w * kElementBytes, pitch,
                        TensorMath::kStepK / 2 * pitch, tile_offset, fragment);
          const unsigned tap_weights =
              own_weights + kFragmentBytes * ((kw * taps + tap) * fragments);
#pragma unroll
          for (int m = 0; m < kWarpMTiles; ++m) {
            uint4 part[kParts];
#pragma unroll
            for (int i = 0; i < kParts; ++i) {
              part[i] =
                  load_shared(tap_weights + kFragmentBytes * ((m * kParts + i) * 32), uint4());
            }
            add_products(sum[m], part, fragment);
          }
        }
      }
    };

    StageOfK loaded{tile.taps[0].begin, 0, taps_h.begin};
    StageOfK used = loaded;
    const auto next = [&](StageOfK& k) { k.advance(taps_h, stage_taps_h, 1, k_steps); };
    run_pipeline(
        gemm.stages, tile.stages,
        [&](int buffer) {
          load_stage(loaded, buffer);
          next(loaded);
        },
        [&](int buffer) {
          multiply_stage(used, buffer);
          next(used);
        });

    // Two positions of a lane are stored together where that is aligned.
    const bool pairs =
        extent[2] % 2 == 0 &&
        reinterpret_cast<unsigned long long>(grad_input) % (2 * sizeof(Element)) == 0;
#pragma unroll
    for (int i = 0; i < kWarpNTiles; ++i) {
      int place;
      const int row = divmod(warp_n * kWarpNTiles + i, gemm.row_tiles, &place);
      int h;
      const int d = divmod(row, gemm.tile_h, &h);
      const int within = 8 * place + lane % 4 * 2;
      const Index at[3] = {tile.output[0] + d, tile.output[1] + h, tile.output[2] + within};
      if (row >= rows || at[0] >= extent[0] || at[1] >= extent[1] || at[2] >= extent[2] ||
          within >= static_cast<int>(gemm.segment.divisor)) {
        continue;
      }
      Element* const target =
          grad_input + tile.y_offset + ((at[0] * extent[1] + at[1]) * extent[2] + at[2]);
#pragma unroll
      for (int m = 0; m < kWarpMTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int channel = (warp_m * kWarpMTiles + m) * 16 + lane / 4 + 8 * half;
          if (tile.first_co + channel >= out_channels) continue;
          OutputVector<2> pair;
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            Accumulator total = sum[m][i][2 * half + j];
            if (total != total) {
              const Index output[3] = {at[0], at[1], at[2] + j};
              // +0, as of no products at all.
              total = Accumulator(0) + direct_sum(grad_output, weight, p, tile.n, tile.group,
                                                  tile.first_co + channel, output);
            }
            store(&pair.value[j], total);
          }
          Element* const pair_target = target + channel * tile.output_volume;
          if (pairs) {
            *reinterpret_cast<OutputVector<2>*>(pair_target) = pair;
          } else {
            pair_target[0] = pair.value[0];
            if (at[2] + 1 < extent[2]) pair_target[1] = pair.value[1];
          }
        }
      }
    }
  }
}
