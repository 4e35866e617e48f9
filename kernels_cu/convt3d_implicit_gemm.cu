// Deterministic transposed convolution on tensor cores: implicit GEMM of whole rows, col2im along
// W.
//
//   y[n, co, o] = bias[co] + sum over taps k, channels ci of x[n, ci, i] * w[ci, co, k],
//                 o + padding = i*stride + k*dilation on each axis
//
// For one output row (n, od, oh), whose taps (kd, kh) follow from its phases (residue_class.cuh):
//
//   product[kw, co][i] = sum over (kd, kh, ci) of w[ci, co, kd, kh, kw] * x[n, ci, id, ih, i]
//   y[n, co, od, oh, ow] = bias[co] + sum over kw of product[kw, co][(ow + padding - kw*dilation) /
//                          stride]
//
// gemm_m = (taps along W) x (output channels), gemm_n = inputs along W, gemm_k = (taps kd, kh of
// the phase) x (input channels). No product is wasted on a stride or a dilation, and rows of y are
// written whole.
//
//   block  co_tile output channels of one group x a box of output rows of one phase (AxisParams::
//          tile along depth and height) x a segment of outputs along W, with all inputs it needs
//   warp   kWarpMTiles x kWarpNTiles tiles of 16 x 8 products (warp_products.cuh); 8 inputs of one
//          row to a tile. On Hopper four warps multiply together, by wgmma, and the tiles are 8 x 8
//          (warpgroup_products.cuh)
//   stage  stage_steps * kStepK channels, one kd and stage_taps_h kh: the x tile as
//          [channel][plane][row][position], rows shared by neighbouring output rows loaded once,
//          and the packed weights (pack_weight.cu); `stages` of them in dynamic shared memory,
//          filled by cp.async
//   epilogue pass_rows output rows at a time: the products go to shared memory as
//          [position][kw][co], then consecutive threads sum the taps of consecutive outputs, where
//          OutputTaps says that their products are, and store them
//
// A block computes one tile or several (BlockTile), each described by one of its threads while the
// block waits for the inputs of the previous one.
//
// Where the taps along W do not fit one GEMM they are cut into slices, multiplied one after the
// other; the sums so far wait in shared memory.
//
// Determinism: every output is the sum of its taps along W in ascending order, each tap the sum of
// its stages in order, so results are bit-identical from run to run and for every split of the
// batch. Where an input does not exist, zeros are multiplied, or nothing; a sum that came out as
// NaN is computed again from its definition (direct_sum.cuh), so infinities and NaNs are where they
// would be without tensor cores.
// Limits: sm_80; with wgmma sm_90a, and no float64. Real dtypes. Tiles fit shared memory because
// Python chooses them so.
#include <block_tile.cuh>
#include <convt3d_params.cuh>
#include <element.cuh>
#include <pipeline.cuh>
#include <row_epilogue.cuh>
#include <tensor_core.cuh>
#include <tile_load.cuh>
#if CONVT3D_WARPGROUPS
#include <warpgroup_products.cuh>
#else
#include <warp_products.cuh>
#endif

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    convt3d_implicit_gemm(const Element* __restrict__ x, const Element* __restrict__ weight,
                          const uint4* __restrict__ packed, const Element* __restrict__ bias,
                          Element* __restrict__ y, const __grid_constant__ Params p) {
  constexpr int kTilesTogether = kWarpsTogether * kWarpNTiles;
  constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  constexpr int kSumBytes = static_cast<int>(sizeof(Accumulator));
  unsigned char* const shared = dynamic_shared_memory();
  const GemmParams& gemm = p.gemm;

  const Index k_steps = k_steps_of(p);
  // Of the packed weights, from one tap of a phase along depth to the next.
  const Index tap_d_steps =
      static_cast<Index>(p.axis[0].tap_step) * static_cast<Index>(p.axis[1].kernel) * k_steps;
  const Accumulator empty = empty_sum(p);

  const int tile_d = static_cast<int>(p.axis[0].tile);
  const int tile_h = static_cast<int>(p.axis[1].tile);
  const int tile_w = static_cast<int>(p.axis[2].tile);
  const int rows = tile_d * tile_h;
  const int stage_steps = gemm.stage_steps;
  const Index stage_taps_h = static_cast<Index>(gemm.stage_taps_h.divisor);
  const int stage_rows_h = static_cast<int>(gemm.x.rows_h.divisor);
  const int pitch = gemm.x.channel_pitch * kElementBytes;
  const int step_d = static_cast<int>(p.axis[0].input_step);
  const int step_h = static_cast<int>(p.axis[1].input_step);
  const int fragments = step_fragments(p);
  // From one tap along height to the next.
  const int tap_bytes_of_x = step_h * tile_w * kElementBytes;
  const int tap_bytes_of_weights = fragments * static_cast<int>(sizeof(uint4));
  const unsigned stage_memory = shared_address(shared);

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  int warp_m;
  const int warp_n = place_of_warp(warp, gemm.warps_m, &warp_m);

  // Where this warp's tiles of 8 inputs are.
  int tile_offset[kWarpNTiles];  // bytes inside a stage, for the last tap along height
  int place;
  int row = divmod(warp_n * kWarpNTiles, gemm.row_tiles, &place);
  int h;
  int d = divmod(row, gemm.tile_h, &h);
#pragma unroll
  for (int i = 0; i < kWarpNTiles; ++i) {
    const bool exists = row < rows;
    tile_offset[i] = exists ? ((d * stage_rows_h + h) * tile_w + 8 * place) * kElementBytes : 0;
    if (++place == static_cast<int>(gemm.row_tiles.divisor)) {
      place = 0;
      ++row;
      if (++h == tile_h) {
        h = 0;
        ++d;
      }
    }
  }
  const WarpRows warp_rows =
      rows_of_tiles(p, warp_n / kWarpsTogether * kTilesTogether, kTilesTogether, rows);
  add_lane_of_positions(lane, pitch, tile_offset);

  // Of the outputs that a thread sums. Hidden, or it would be worked out again for each tile.
  const int first_item = hidden(warp * 32 + interleaved_lane(lane, gemm.log2_interleave));
  const BoxUnit box_unit = unit_of_box(static_cast<int>(threadIdx.x), gemm.x);

  // Two: while one is computed, the next is described.
  BlockTile* shared_tile = reinterpret_cast<BlockTile*>(shared + gemm.block_tile);
  BlockTile* next_tile = shared_tile + 1;
  // Unsigned: the last block may reach past 2^31.
  const UnsignedIndex tiles = static_cast<UnsignedIndex>(p.tiles);
  const Index slices = static_cast<Index>(p.axis[2].tap_slices);
  UnsignedIndex index = blockIdx.x;
  Index slice = 0;
  const auto describe = [&](BlockTile* target) {
    *target = block_tile(static_cast<Index>(index), p);
    target->slice = tap_slice(p, *target, slice);
  };
  if (threadIdx.x == 0) describe(shared_tile);
  while (index < tiles) {
    if (++slice == slices) {
      slice = 0;
      index += gridDim.x;
    }
    __syncthreads();  // the description is complete, and the products of the previous one used
    const BlockTile tile = *shared_tile;
    const Taps taps_h = tile.taps[1];

    WarpSums sums_of_warp;
    sums_of_warp.fill(empty);

    const uint4* const weights = packed + tile.slice.weights;

    const auto load_stage = [&](const StageOfK& k, int buffer) {
      const unsigned memory = stage_memory + buffer * gemm.stage_bytes;
      const int taps = static_cast<int>(min(stage_taps_h, taps_h.end - k.tap_h));
      Box stage;
      stage.channel = k.step * TensorMath::kStepK;
      stage.first[0] = tile.lowest[0] - k.tap_d * static_cast<Index>(p.axis[0].input_step);
      stage.first[1] = tile.lowest[1] - (k.tap_h + taps - 1) * step_h;
      stage.first[2] = tile.slice.first_input;
      stage.rows_h = tile_h + (taps - 1) * step_h;
      load_box(memory, x + tile.x_offset, gemm.x, stage, box_unit,
               stage_steps * TensorMath::kStepK);
      const unsigned target = memory + gemm.stage_weights;
      const int steps = static_cast<int>(min(static_cast<Index>(stage_steps), k_steps - k.step));
      const uint4* const source =
          weights + static_cast<long long>(k.tap_d * tap_d_steps + k.step * tile.taps_h + k.tap_h) *
                        fragments;
      if (taps == tile.taps_h) {
        load_fragments(target, source, steps * taps * fragments);
      } else {
        for (int step = 0; step < steps; ++step) {
          load_fragments(target + step * taps * tap_bytes_of_weights,
                         source + static_cast<long long>(step * tile.taps_h) * fragments,
                         taps * fragments);
        }
      }
    };

    const auto multiply_stage = [&](const StageOfK& k, int buffer) {
      // Rows outside the input hold zeros: a warp skips the taps that meet no other.
      if (!warp_rows.meet_input(0, tile.lowest[0] - k.tap_d * step_d)) return;
      const int taps = static_cast<int>(min(stage_taps_h, taps_h.end - k.tap_h));
      const int steps = static_cast<int>(min(static_cast<Index>(stage_steps), k_steps - k.step));
      unsigned step_x = stage_memory + buffer * gemm.stage_bytes + (taps - 1) * tap_bytes_of_x;
      unsigned tap_weights = stage_memory + buffer * gemm.stage_bytes + gemm.stage_weights;
      for (int step = 0; step < steps; ++step) {
        unsigned tap_x = step_x;
        Index lowest = tile.lowest[1] - k.tap_h * step_h;
        for (int tap = 0; tap < taps; ++tap) {
          if (warp_rows.meet_input(1, lowest)) {
            sums_of_warp.add(tap_x, pitch, tile_offset, tap_weights, warp_m, lane);
          }
          tap_x -= tap_bytes_of_x;
          tap_weights += tap_bytes_of_weights;
          lowest -= step_h;
        }
        step_x += TensorMath::kStepK * pitch;
      }
      sums_of_warp.finish();
    };

    StageOfK loaded{tile.taps[0].begin, 0, taps_h.begin};
    StageOfK used = loaded;
    const auto next = [&](StageOfK& k) { k.advance(taps_h, stage_taps_h, stage_steps, k_steps); };
    run_pipeline<kWarpgroups>(
        gemm.stages, tile.slice.stages,
        [&](int buffer) {
          load_stage(loaded, buffer);
          next(loaded);
        },
        [&](int buffer) {
          multiply_stage(used, buffer);
          next(used);
        },
        [&] {
          if (threadIdx.x == 0 && index < tiles) describe(next_tile);
        });

    ChannelVector* const sums = reinterpret_cast<ChannelVector*>(shared + gemm.sums);
    // Loaded again, so that it takes no registers while products are summed.
    const BlockTile output_tile = *shared_tile;
    const int product_bytes = gemm.product_pitch * kSumBytes;
    const int pass_rows = static_cast<int>(gemm.pass_rows.divisor);
    const int segment_outputs = static_cast<int>(gemm.segment.divisor);
    const int sum_channels = static_cast<int>(gemm.sum_channels.divisor);
    const Index slice = output_tile.slice.index;
    const bool last_slice = slice + 1 == slices;
    // Phases without taps, and rows that meet no input: the sums are those of no products.
    const bool any_products = output_tile.stages > 0;
    OutputTaps* const output_taps = reinterpret_cast<OutputTaps*>(shared + gemm.output_taps);
    RowOutputs* const row_outputs = reinterpret_cast<RowOutputs*>(shared + gemm.row_outputs);
    const int tap_pitch = static_cast<int>(gemm.co_tile.divisor) * kSumBytes;
    const int tap_bytes = static_cast<int>(p.axis[2].tap_step) * tap_pitch -
                          static_cast<int>(p.axis[2].input_step) * product_bytes;
    for (int first_row = 0; first_row < rows; first_row += pass_rows) {
      const unsigned positions = min(pass_rows, rows - first_row) * tile_w;
      __syncthreads();  // the stages, or the products of the previous pass, have been used
      // Of the warp's tiles: their first positions, and their lane's products.
      int position = 8 * warp_n * kWarpNTiles - first_row * tile_w;
      unsigned char* own_products =
          shared + (position + WarpSums::first_position(lane)) * product_bytes +
          (warp_m * kWarpMTiles * kMTileRows + WarpSums::first_row(lane)) * kSumBytes;
#pragma unroll
      for (int i = 0; i < kWarpNTiles; ++i) {
        if (any_products && static_cast<unsigned>(position) < positions) {
          sums_of_warp.store(i, reinterpret_cast<Accumulator*>(own_products), gemm.product_pitch);
        }
        position += 8;
        own_products += 8 * product_bytes;
      }
      if (first_row == 0 && output_tile.finds_taps) {
        for (int place = static_cast<int>(threadIdx.x); place < segment_outputs;
             place += static_cast<int>(blockDim.x)) {
          output_taps[place] = taps_of_output(
              p.axis[2], output_tile.output[2] + place, output_tile.slice.first_tap,
              output_tile.slice.end_tap, output_tile.slice.first_input, product_bytes, tap_pitch);
        }
      }
      for (int line = static_cast<int>(threadIdx.x); line < output_tile.lines;
           line += static_cast<int>(blockDim.x)) {
        row_outputs[line] = outputs_of_line(p, output_tile, first_row, line);
      }
      __syncthreads();  // the products of the pass are complete

      for (int e = first_item; e < output_tile.items; e += static_cast<int>(blockDim.x)) {
        int place;
        const int line = divmod(e, gemm.row_places, &place);
        const RowOutputs outputs = row_outputs[line];
        place -= outputs.skipped;
        if (static_cast<unsigned>(place) >= static_cast<unsigned>(outputs.count)) continue;
        const OutputTaps taps = output_taps[place];
        unsigned products = stage_memory + outputs.products;
        Element* target = y + output_tile.y_offset + (outputs.offset + place);
        int channel = outputs.first_channel;
        const int end_channel = min(channel + sum_channels, output_tile.co_count);
        do {
          unsigned source = products + taps.first;
          unsigned last = products + taps.last;
          ChannelVector total;
          // Of the slices so far.
          const auto kept_sums = [&] {
            int row;
            divmod(hidden(line), gemm.pass_rows, &row);
            const int position = (first_row + row) * static_cast<int>(gemm.segment.divisor) + place;
            return sums +
                   (position * static_cast<int>(gemm.co_tile.divisor) + channel) / kSumChannels;
          };
          const bool none = taps.last == OutputTaps::kNone || !any_products;
          if (__builtin_expect(none | (slice > 0), false)) {
            ChannelVector kept;
#pragma unroll
            for (int c = 0; c < kSumChannels; ++c) kept.channel[c] = empty;
            if (slice > 0) kept = *kept_sums();
            if (none) {
              last = source;
            } else {
              load_products(source, total.channel);
              kept = kept + total;
            }
            total = kept;
          } else {
            load_products(source, total.channel);
          }
#pragma unroll 1
          while (source != last) {
            source += tap_bytes;
            ChannelVector value;
            load_products(source, value.channel);
            total = total + value;
          }
          if (!last_slice) {
            *kept_sums() = total;
          } else {
            const auto direct = [&](int c) {
              int row;
              divmod(hidden(line), gemm.pass_rows, &row);
              Index at[3];
              output_of_row(p, output_tile, first_row + row, at);
              at[2] += hidden(place);
              return direct_sum(x, weight, p, output_tile.n, output_tile.group,
                                output_tile.first_co + channel + c, at);
            };
            const int channels = end_channel - channel;
            const Index first_bias = output_tile.first_bias + channel;
            if (channels >= kSumChannels) {
              store_channels<true>(total, kSumChannels, target, output_tile.output_volume, bias,
                                   first_bias, direct, p);
            } else {
              store_channels<false>(total, channels, target, output_tile.output_volume, bias,
                                    first_bias, direct, p);
            }
          }
          channel += kSumChannels;
          products += kSumChannels * kSumBytes;
          target += kSumChannels * output_tile.output_volume;
        } while (channel < end_channel);
      }
    }
    BlockTile* const done = shared_tile;
    shared_tile = next_tile;
    next_tile = done;
  }
}
