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
//   warp   kWarpMTiles x kWarpNTiles tiles of 16 x 8 products; 8 inputs of one row to a tile
//   stage  stage_steps * kStepK channels, one kd and stage_taps_h kh: the x tile as
//          [channel][plane][row][position], rows shared by neighbouring output rows loaded once,
//          and the packed weights (pack_weight.cu); `stages` of them in dynamic shared memory,
//          filled by cp.async
//   epilogue pass_rows output rows at a time: the products go to shared memory as
//          [position][kw][co], then consecutive threads sum the taps of consecutive outputs, where
//          OutputTaps says that their products are, and store them
//
// A block computes one tile or several (BlockTile), each described by one of its threads.
//
// Where the taps along W do not fit one GEMM they are cut into slices, multiplied one after the
// other; the sums so far wait in shared memory.
//
// Determinism: every output is the sum of its taps along W in ascending order, each tap the sum of
// its stages in order, so results are bit-identical from run to run and for every split of the
// batch. Where an input does not exist, zeros are multiplied, or nothing; a sum that came out as
// NaN is computed again from its definition (direct_sum.cuh), so infinities and NaNs are where they
// would be without tensor cores.
// Limits: sm_80. Real dtypes. Tiles fit shared memory because Python chooses them so.
#include <convt3d_params.cuh>
#include <direct_sum.cuh>
#include <element.cuh>
#include <epilogue.cuh>
#include <residue_class.cuh>
#include <tensor_core.cuh>
#include <tile_load.cuh>

/// Sums of consecutive output channels.
struct alignas(16) ChannelVector {
  Accumulator channel[kSumChannels];
};

/// Loads the products of consecutive output channels, 16 bytes at a time.
__device__ inline void load_products(unsigned address, float (&channel)[kSumChannels]) {
#pragma unroll
  for (int c = 0; c < kSumChannels; c += 4) {
    const float4 part = load_shared(address + c * sizeof(float), float4());
    channel[c] = part.x;
    channel[c + 1] = part.y;
    channel[c + 2] = part.z;
    channel[c + 3] = part.w;
  }
}

__device__ inline void load_products(unsigned address, double (&channel)[kSumChannels]) {
#pragma unroll
  for (int c = 0; c < kSumChannels; c += 2) {
    const double2 part = load_shared(address + c * sizeof(double), double2());
    channel[c] = part.x;
    channel[c + 1] = part.y;
  }
}

/// A tap interval [begin, end) of one axis, of those of the phase.
struct Taps {
  Index begin;
  Index end;
};

/// Returns the taps, of the first `count` of a phase, that meet an input for at least one of some
/// consecutive positions.
///
/// lowest  input that the first position meets at tap 0
__device__ inline Taps taps_in_reach(const AxisParams& axis, Index count, Index lowest,
                                     Index positions) {
  Taps taps{0, 0};
  // Tap j meets inputs from lowest - j*input_step up: those from `end` on are all below the input,
  // those before `begin` all above.
  Index remainder;
  if (lowest + positions > 0) {
    taps.end = min(count, 1 + divmod(lowest + positions - 1, axis.input_step_divmod, &remainder));
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

/// What a block computes at a time. Worked out by one thread: the others only read it.
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
  // Whether the taps of the outputs are to be found: with one slice and one segment those of the
  // block's previous tile are still right.
  bool finds_taps;
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
    tile.lowest[a] = phase[a].origin + box * size;
    tile.taps[a] = taps_in_reach(axis, phase[a].taps, tile.lowest[a], size);
  }
  tile.n = divmod(rest, gemm.groups, &tile.group);
  tile.first_co = co_tile * static_cast<Index>(gemm.co_tile.divisor);
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
  tile.finds_taps = index == static_cast<Index>(blockIdx.x) || p.axis[2].tap_slices > 1 ||
                    gemm.segments.divisor > 1;
  return tile;
}

/// The box of output rows that a warp has tiles of; empty where `first` is not below `end`.
struct WarpRows {
  int first_d;
  int end_d;
  int first_h;
  int end_h;
};

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

/// The products of one output of a row: `count` of them for each channel.
struct alignas(8) OutputTaps {
  unsigned first;  // bytes from the start of the row's products
  int count;
};

/// Finds the products that make up an output, of the taps along W in [first_tap, end_tap).
///
/// first_input  input that the products of a row begin with
/// input_pitch  bytes from one input to the next; tap_pitch from one tap of the kernel to the next
__device__ inline OutputTaps taps_of_output(const AxisParams& axis, Index output, Index first_tap,
                                            Index end_tap, Index first_input, int input_pitch,
                                            int tap_pitch) {
  const Index tap_step = static_cast<Index>(axis.tap_step);
  const Index input_step = static_cast<Index>(axis.input_step);
  OutputTaps taps{0, 0};
  // As in phase_of_axis.
  Index residue;
  const Index quotient =
      divmod(output + static_cast<Index>(axis.padding), axis.stride_divmod, &residue);
  Index remainder;
  const Index shift = divmod(residue, axis.gcd_divmod, &remainder);
  if (remainder != 0) return taps;
  Index tap;
  divmod(shift * static_cast<Index>(axis.inverse), axis.tap_step_divmod, &tap);
  Index input = quotient - divmod(tap * static_cast<Index>(axis.dilation) - residue,
                                  axis.stride_divmod, &remainder);
  if (tap < first_tap) {
    const Index skipped = divmod(first_tap - tap + tap_step - 1, axis.tap_step_divmod, &remainder);
    tap += skipped * tap_step;
    input -= skipped * input_step;
  }
  while (tap < end_tap && input >= static_cast<Index>(axis.input)) {
    tap += tap_step;
    input -= input_step;
  }
  if (tap >= end_tap || input < 0) return taps;
  taps.first = static_cast<unsigned>(static_cast<int>(input - first_input) * input_pitch +
                                     static_cast<int>(tap - first_tap) * tap_pitch);
  for (; tap < end_tap && input >= 0; tap += tap_step) {
    ++taps.count;
    input -= input_step;
  }
  return taps;
}

/// Returns the sum of no products: what does not change the bias that is added to it. Without a
/// bias +0, as if that were the bias, which then need not be added.
__device__ inline Accumulator empty_sum(const Params& p) {
  return p.has_bias ? EmptySum<Accumulator>::value() : Accumulator(0);
}

/// One output position, for all channels of a block.
struct OutputRow {
  Index n;
  Index group;
  Index coordinate[3];
  Element* y;  // of the block's first channel
  Index channel_step;
};

/// Stores the sums of consecutive output channels: bias, epilogue, rounding.
///
/// kEvery: there are kSumChannels channels, so that none is tested.
/// first_co  first channel of the block, within the group; `channel` counts from it
template <bool kEvery>
__device__ inline void store_channels(ChannelVector total, const OutputRow& output, Index first_co,
                                      int channel, int channels, const Element* __restrict__ x,
                                      const Element* __restrict__ weight,
                                      const Element* __restrict__ bias, const Params& p) {
  bool any_nan = false;
#pragma unroll
  for (int c = 0; c < kSumChannels; c += 2) {
    // One instruction tests two sums.
    any_nan |=
        (total.channel[c] != total.channel[c]) | (total.channel[c + 1] != total.channel[c + 1]);
  }
  if (any_nan) {
    // Seldom: not unrolled, so that it costs the others nothing.
#pragma unroll 1
    for (int c = 0; c < channels; ++c) {
      const Accumulator again =
          empty_sum(p) + direct_sum(x, weight, p, output.n, output.group, first_co + channel + c,
                                    output.coordinate);
#pragma unroll
      for (int i = 0; i < kSumChannels; ++i) {
        if (i == c && total.channel[i] != total.channel[i]) total.channel[i] = again;
      }
    }
  }
  if (p.has_bias) {
    const Element* source =
        bias + output.group * static_cast<Index>(p.out_channels) + first_co + channel;
#pragma unroll
    for (int c = 0; c < kSumChannels; ++c) {
      if (kEvery || c < channels) total.channel[c] = total.channel[c] + to_accumulator(source[c]);
    }
  }
  Element* target = output.y + channel * output.channel_step;
#pragma unroll
  for (int c = 0; c < kSumChannels; ++c) {
    if (kEvery || c < channels) store(target, activate(total.channel[c], p));
    target += output.channel_step;
  }
}

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    convt3d_implicit_gemm(const Element* __restrict__ x, const Element* __restrict__ weight,
                          const uint4* __restrict__ packed, const Element* __restrict__ bias,
                          Element* __restrict__ y, const __grid_constant__ Params p) {
  constexpr int kParts = TensorMath::kParts;
  constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  constexpr int kSumBytes = static_cast<int>(sizeof(Accumulator));
  unsigned char* const shared = dynamic_shared_memory();
  const GemmParams& gemm = p.gemm;

  const Index out_channels = static_cast<Index>(p.out_channels);
  const Index input_w = static_cast<Index>(p.axis[2].input);
  const Index output_h = static_cast<Index>(p.axis[1].output);
  const Index output_w = static_cast<Index>(p.axis[2].output);
  const Index output_d = static_cast<Index>(p.axis[0].output);
  const Index kernel_h = static_cast<Index>(p.axis[1].kernel);
  const Index dilation_w = static_cast<Index>(p.axis[2].dilation);
  const Index padding_w = static_cast<Index>(p.axis[2].padding);
  const Index k_steps = k_steps_of(p);
  const Accumulator empty = empty_sum(p);

  const int tile_d = static_cast<int>(p.axis[0].tile);
  const int tile_h = static_cast<int>(p.axis[1].tile);
  const int tile_w = static_cast<int>(p.axis[2].tile);
  const int rows = tile_d * tile_h;
  const int stage_steps = gemm.stage_steps;
  const Index stage_taps_h = static_cast<Index>(gemm.stage_taps_h.divisor);
  const int stage_rows_h = static_cast<int>(gemm.stage_rows_h.divisor);
  const int pitch = gemm.channel_pitch * kElementBytes;
  const int step_h = static_cast<int>(p.axis[1].input_step);
  const int stages = gemm.stages;
  const int fragments = step_fragments(p);

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  int warp_m;
  const int warp_n = divmod(warp, gemm.warps_m, &warp_m);

  // Where this warp's tiles of 8 inputs are.
  int tile_offset[kWarpNTiles];  // bytes inside a stage, for the last tap along height
  int place;
  int row = divmod(warp_n * kWarpNTiles, gemm.row_tiles, &place);
  int h;
  int d = divmod(row, gemm.tile_h, &h);
  WarpRows warp_rows{d, d, h, h};
#pragma unroll
  for (int i = 0; i < kWarpNTiles; ++i) {
    const bool exists = row < rows;
    tile_offset[i] = exists ? ((d * stage_rows_h + h) * tile_w + 8 * place) * kElementBytes : 0;
    if (exists) {
      warp_rows.end_d = d + 1;
      warp_rows.end_h = h + 1;
    }
    if (++place == static_cast<int>(gemm.row_tiles.divisor)) {
      place = 0;
      ++row;
      if (++h == tile_h) {
        h = 0;
        ++d;
      }
    }
  }
  if (warp_rows.end_d - warp_rows.first_d > 1) {
    // From one plane to the next: the rows up to the last of a plane, and those from its first.
    warp_rows.first_h = 0;
    warp_rows.end_h = tile_h;
  }
  TensorMath::add_lane(lane, pitch, tile_offset);

  BlockTile* const shared_tile = reinterpret_cast<BlockTile*>(shared + gemm.block_tile);
  // Unsigned: the last block may reach past 2^31.
  const UnsignedIndex tiles = static_cast<UnsignedIndex>(p.tiles);
  for (UnsignedIndex index = blockIdx.x; index < tiles; index += gridDim.x) {
    __syncthreads();  // the products and the description of the previous tile have been used
    if (threadIdx.x == 0) {
      *shared_tile = block_tile(static_cast<Index>(index), p);
    }
    __syncthreads();  // the description is complete
    const BlockTile tile = *shared_tile;
    const Taps taps_h = tile.taps[1];
    const Index end_output =
        min(tile.output[2] + static_cast<Index>(gemm.segment.divisor), output_w);
    // Rows outside the input hold zeros: a warp skips the taps that meet no other.
    const Taps warp_taps[2] = {
        taps_in_reach(p.axis[0], tile.taps[0].end, tile.lowest[0] + warp_rows.first_d,
                      warp_rows.end_d - warp_rows.first_d),
        taps_in_reach(p.axis[1], taps_h.end, tile.lowest[1] + warp_rows.first_h,
                      warp_rows.end_h - warp_rows.first_h)};

    const Index slices = static_cast<Index>(p.axis[2].tap_slices);
    for (Index slice = 0; slice < slices; ++slice) {
      const Index first_tap = slice * static_cast<Index>(p.axis[2].tap_slice);
      const Index end_tap = min(first_tap + static_cast<Index>(p.axis[2].tap_slice),
                                static_cast<Index>(p.axis[2].kernel));
      Index remainder;
      // The first input that the segment needs, moved down to a multiple of 8 for wide copies.
      const Index lowest = tile.output[2] + padding_w - (end_tap - 1) * dilation_w;
      const Index first_input =
          (lowest > 0 ? divmod(lowest, p.axis[2].stride_divmod, &remainder) : 0) &
          ~static_cast<Index>(7);
      const bool has_inputs =
          first_input < input_w && end_output - 1 + padding_w - first_tap * dilation_w >= 0;

      Accumulator sum[kWarpMTiles][kWarpNTiles][4];
#pragma unroll
      for (int m = 0; m < kWarpMTiles; ++m) {
#pragma unroll
        for (int i = 0; i < kWarpNTiles; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[m][i][j] = empty;
        }
      }

      const Index stage_count = has_inputs ? tile.stages : 0;
      const uint4* const weights = packed + (tile.weights + slice * shared_tile->slice_fragments);

      const auto load_stage = [&](const StageOfK& k, int buffer) {
        unsigned char* const memory = shared + buffer * gemm.stage_bytes;
        const int taps = static_cast<int>(min(stage_taps_h, taps_h.end - k.tap_h));
        XStage stage;
        stage.channel = k.step * TensorMath::kStepK;
        stage.first[0] = tile.lowest[0] - k.tap_d * static_cast<Index>(p.axis[0].input_step);
        stage.first[1] = tile.lowest[1] - (k.tap_h + taps - 1) * step_h;
        stage.first[2] = first_input;
        stage.rows_h = tile_h + (taps - 1) * step_h;
        load_x(reinterpret_cast<Element*>(memory), x + tile.x_offset, p, stage,
               stage_steps * TensorMath::kStepK);
        uint4* const target = reinterpret_cast<uint4*>(memory + gemm.stage_weights);
        const Index kd = k.tap_d * static_cast<Index>(p.axis[0].tap_step);
        const int steps = static_cast<int>(min(static_cast<Index>(stage_steps), k_steps - k.step));
        const uint4* const source =
            weights +
            static_cast<long long>(kd * kernel_h * k_steps + k.step * tile.taps_h + k.tap_h) *
                fragments;
        if (taps == tile.taps_h) {
          load_fragments(target, source, steps * taps * fragments);
        } else {
          for (int step = 0; step < steps; ++step) {
            load_fragments(target + step * taps * fragments,
                           source + static_cast<long long>(step * tile.taps_h) * fragments,
                           taps * fragments);
          }
        }
      };

      const auto multiply_stage = [&](const StageOfK& k, int buffer) {
        if (k.tap_d < warp_taps[0].begin || k.tap_d >= warp_taps[0].end) return;
        const unsigned x_tile = shared_address(shared + buffer * gemm.stage_bytes);
        const unsigned own_weights =
            x_tile + static_cast<unsigned>(gemm.stage_weights) +
            static_cast<unsigned>(sizeof(uint4)) * (warp_m * kWarpMTiles * kParts * 32 + lane);
        const int taps = static_cast<int>(min(stage_taps_h, taps_h.end - k.tap_h));
        const int first =
            static_cast<int>(max(warp_taps[1].begin - k.tap_h, static_cast<Index>(0)));
        const int end = static_cast<int>(min(warp_taps[1].end - k.tap_h, static_cast<Index>(taps)));
        const int steps = static_cast<int>(min(static_cast<Index>(stage_steps), k_steps - k.step));
        for (int step = 0; step < steps; ++step) {
          const unsigned step_x = x_tile + step * TensorMath::kStepK * pitch;
          for (int tap = first; tap < end; ++tap) {
            TensorMath::XFragment fragment[kWarpNTiles];
            TensorMath::load(step_x + (taps - 1 - tap) * step_h * tile_w * kElementBytes, pitch,
                             tile_offset, fragment);
            const unsigned tap_weights = own_weights + static_cast<unsigned>(sizeof(uint4)) *
                                                           ((step * taps + tap) * fragments);
#pragma unroll
            for (int m = 0; m < kWarpMTiles; ++m) {
              uint4 part[kParts];
#pragma unroll
              for (int i = 0; i < kParts; ++i) {
                part[i] = load_shared(
                    tap_weights + static_cast<unsigned>(sizeof(uint4)) * ((m * kParts + i) * 32),
                    uint4());
              }
              add_products(sum[m], part, fragment);
            }
          }
        }
      };

      StageOfK loaded{tile.taps[0].begin, 0, taps_h.begin};
      StageOfK used = loaded;
      const auto next = [&](StageOfK& k) { k.advance(taps_h, stage_taps_h, stage_steps, k_steps); };
      if (slice > 0) __syncthreads();  // the products of the previous slice have been used
      // The first iterations only fill the pipeline: the loads stand here once.
      int filled = 0;
      int buffer = 0;
      for (Index s = 1 - stages; s < stage_count; ++s) {
        if (s >= 0) {
          if (stages == 2) {
            wait_for_copies<0>();
          } else if (stages == 3) {
            wait_for_copies<1>();
          } else {
            wait_for_copies<2>();
          }
          // The stage has arrived for all threads, and all have used the buffer filled next.
          __syncthreads();
        }
        if (s + stages - 1 < stage_count) {
          load_stage(loaded, filled);
          next(loaded);
          filled = filled + 1 == stages ? 0 : filled + 1;
        }
        commit_copies();
        if (s < 0) continue;
        multiply_stage(used, buffer);
        next(used);
        buffer = buffer + 1 == stages ? 0 : buffer + 1;
      }

      ChannelVector* const sums = reinterpret_cast<ChannelVector*>(shared + gemm.sums);
      // Loaded again, so that it takes no registers while products are summed.
      const BlockTile tile = *shared_tile;
      const int co_count = static_cast<int>(
          min(static_cast<Index>(gemm.co_tile.divisor), out_channels - tile.first_co));
      const unsigned products = shared_address(shared);
      const int product_bytes = gemm.product_pitch * kSumBytes;
      const int pass_rows = static_cast<int>(gemm.pass_rows.divisor);
      // Bytes from the start of shared memory to this lane's first product of the warp's first
      // tile.
      const int own_product = (8 * warp_n * kWarpNTiles + lane % 4 * 2) * product_bytes +
                              (warp_m * kWarpMTiles * 16 + lane / 4) * kSumBytes;
      const int segment_outputs = static_cast<int>(gemm.segment.divisor);
      // The same for all rows and channels of an output position.
      OutputTaps* const output_taps = reinterpret_cast<OutputTaps*>(shared + gemm.output_taps);
      const int tap_pitch = static_cast<int>(gemm.co_tile.divisor) * kSumBytes;
      const int tap_bytes = static_cast<int>(p.axis[2].tap_step) * tap_pitch -
                            static_cast<int>(p.axis[2].input_step) * product_bytes;
      const int row_bytes = tile_w * product_bytes;
      const int sum_channels = static_cast<int>(gemm.sum_channels.divisor);
      const int co_tile_size = static_cast<int>(gemm.co_tile.divisor);
      int remaining;
      const int parts = divmod(co_count + sum_channels - 1, gemm.sum_channels, &remaining);
      for (int first_row = 0; first_row < rows; first_row += pass_rows) {
        const int positions = min(pass_rows, rows - first_row) * tile_w;
        __syncthreads();  // the stages, or the products of the previous pass, have been used
#pragma unroll
        for (int i = 0; i < kWarpNTiles; ++i) {
          const int position = 8 * (warp_n * kWarpNTiles + i) - first_row * tile_w;
          if (position < 0 || position >= positions) continue;
          Accumulator* const even = reinterpret_cast<Accumulator*>(
              shared + own_product + (8 * i - first_row * tile_w) * product_bytes);
          Accumulator* const odd = even + gemm.product_pitch;
#pragma unroll
          for (int m = 0; m < kWarpMTiles; ++m) {
            even[16 * m] = sum[m][i][0];
            odd[16 * m] = sum[m][i][1];
            even[16 * m + 8] = sum[m][i][2];
            odd[16 * m + 8] = sum[m][i][3];
          }
        }
        if (first_row == 0 && tile.finds_taps) {
          for (int place = static_cast<int>(threadIdx.x); place < segment_outputs;
               place += static_cast<int>(blockDim.x)) {
            output_taps[place] = taps_of_output(p.axis[2], tile.output[2] + place, first_tap,
                                                end_tap, first_input, product_bytes, tap_pitch);
          }
        }
        __syncthreads();  // the products of the pass are complete

        const int items = parts * pass_rows * segment_outputs;
        for (int e = static_cast<int>(threadIdx.x); e < items; e += static_cast<int>(blockDim.x)) {
          int place;
          int row;
          const int part = divmod(divmod(e, gemm.segment, &place), gemm.pass_rows, &row);
          int h;
          const int d = divmod(first_row + row, gemm.tile_h, &h);
          const Index output[3] = {tile.output[0] + d * static_cast<Index>(p.axis[0].stride),
                                   tile.output[1] + h * static_cast<Index>(p.axis[1].stride),
                                   tile.output[2] + place};
          if (first_row + row >= rows || output[0] >= output_d || output[1] >= output_h ||
              output[2] >= end_output) {
            continue;
          }
          const OutputTaps taps = output_taps[place];
          const unsigned first_product =
              products + static_cast<unsigned>(row * row_bytes) + taps.first;
          const OutputRow target{
              tile.n,
              tile.group,
              {output[0], output[1], output[2]},
              y + tile.y_offset + ((output[0] * output_h + output[1]) * output_w + output[2]),
              tile.output_volume};
          // Of the slices so far.
          const auto kept_sums = [&](int channel) {
            const int position = (first_row + row) * segment_outputs + place;
            return sums + (position * co_tile_size + channel) / kSumChannels;
          };
          const int end_channel = min((part + 1) * sum_channels, co_count);
          for (int channel = part * sum_channels; channel < end_channel; channel += kSumChannels) {
            const int channels = min(end_channel - channel, kSumChannels);
            ChannelVector total;
            unsigned source = first_product + static_cast<unsigned>(channel * kSumBytes);
            load_products(source, total.channel);
            int left = taps.count;
            if (__builtin_expect((left == 0) | (slice > 0), false)) {
#pragma unroll
              for (int c = 0; c < kSumChannels; ++c) total.channel[c] = empty;
              if (slice > 0) total = *kept_sums(channel);
            } else {
              source += tap_bytes;
              --left;
            }
#pragma unroll 1
            for (; left > 0; --left) {
              ChannelVector value;
              load_products(source, value.channel);
#pragma unroll
              for (int c = 0; c < kSumChannels; ++c) {
                total.channel[c] = total.channel[c] + value.channel[c];
              }
              source += tap_bytes;
            }
            if (slice + 1 < slices) {
              *kept_sums(channel) = total;
            } else if (channels == kSumChannels) {
              store_channels<true>(total, target, tile.first_co, channel, channels, x, weight, bias,
                                   p);
            } else {
              store_channels<false>(total, target, tile.first_co, channel, channels, x, weight,
                                    bias, p);
            }
          }
        }
      }
    }
  }
}
