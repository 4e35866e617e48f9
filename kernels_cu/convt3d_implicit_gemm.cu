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
//   [channel][plane]
//          [row][position], rows shared by neighbouring output rows loaded once, and the packed
//          weights (pack_weight.cu); `stages` of them in dynamic shared memory, filled by cp.async
//   epilogue pass_rows output rows at a time: the products go to shared memory as
//   [kw][co][position],
//          then consecutive threads sum the taps of consecutive outputs and store them
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

/// Products or sums of consecutive output channels, loaded together.
struct alignas(16) ChannelVector {
  Accumulator channel[kSumChannels];
};

/// A tap interval [begin, end) of one axis, of those of the phase.
struct Taps {
  Index begin;
  Index end;
};

/// Returns the taps of a phase that meet an input for at least one of `count` positions from
/// `first`.
__device__ inline Taps taps_in_reach(const AxisParams& axis, const Phase& phase, Index first,
                                     Index count) {
  Taps taps{0, 0};
  while (taps.end < phase.taps) {
    // Tap j meets the inputs from `lowest` to `lowest + count - 1`; later taps meet lower ones.
    const Index lowest = phase.origin + first - taps.end * static_cast<Index>(axis.input_step);
    if (lowest + count <= 0) break;
    ++taps.end;
    if (lowest >= axis.input) taps.begin = taps.end;
  }
  return taps;
}

/// The box of output rows that a warp has tiles of; empty where `first` is not below `end`.
struct WarpRows {
  int first_d;
  int end_d;
  int first_h;
  int end_h;

  __device__ void include(int d, int h) {
    first_d = min(first_d, d);
    end_d = max(end_d, d + 1);
    first_h = min(first_h, h);
    end_h = max(end_h, h + 1);
  }
};

/// Which part of gemm_k a stage holds: tap of the phase along depth, channel, taps along height.
struct StageOfK {
  Index tap_d;
  Index channel;
  Index tap_h;

  __device__ void advance(const Taps& taps_h, Index stage_taps_h, Index stage_channels,
                          Index in_channels) {
    tap_h += stage_taps_h;
    if (tap_h < taps_h.end) return;
    tap_h = taps_h.begin;
    channel += stage_channels;
    if (channel < in_channels) return;
    channel = 0;
    ++tap_d;
  }
};

/// The products of one output of a row: `count` of them for each channel, `step` apart.
struct OutputTaps {
  const Accumulator* first;
  int count;
  int step;
};

/// Finds the products that make up an output, of the taps along W in [first_tap, end_tap).
///
/// of_row       the products of the row, from input coordinate first_input up
/// input_pitch  from one input to the next; tap_pitch from one tap of the kernel to the next
__device__ inline OutputTaps taps_of_output(const Params& p, Index output, Index first_tap,
                                            Index end_tap, const Accumulator* of_row,
                                            Index first_input, int input_pitch, int tap_pitch) {
  const AxisParams& axis = p.axis[2];
  const Index tap_step = static_cast<Index>(axis.tap_step);
  const Index input_step = static_cast<Index>(axis.input_step);
  OutputTaps taps{
      of_row, 0,
      static_cast<int>(tap_step) * tap_pitch - static_cast<int>(input_step) * input_pitch};
  // As in phase_of_axis.
  Index residue;
  const Index quotient =
      divmod(output + static_cast<Index>(axis.padding), p.gemm.stride_w, &residue);
  Index remainder;
  const Index shift = divmod(residue, p.gemm.gcd_w, &remainder);
  if (remainder != 0) return taps;
  Index tap;
  divmod(shift * static_cast<Index>(axis.inverse), p.gemm.tap_step_w, &tap);
  Index input = quotient - divmod(tap * static_cast<Index>(axis.dilation) - residue,
                                  p.gemm.stride_w, &remainder);
  if (tap < first_tap) {
    const Index skipped = divmod(first_tap - tap + tap_step - 1, p.gemm.tap_step_w, &remainder);
    tap += skipped * tap_step;
    input -= skipped * input_step;
  }
  while (tap < end_tap && input >= axis.input) {
    tap += tap_step;
    input -= input_step;
  }
  taps.first += static_cast<int>(input - first_input) * input_pitch +
                static_cast<int>(tap - first_tap) * tap_pitch;
  for (; tap < end_tap && input >= 0; tap += tap_step) {
    ++taps.count;
    input -= input_step;
  }
  return taps;
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
  for (int c = 0; c < kSumChannels; ++c) any_nan |= total.channel[c] != total.channel[c];
  if (any_nan) {
    // Seldom: not unrolled, so that it costs the others nothing.
#pragma unroll 1
    for (int c = 0; c < channels; ++c) {
      const Accumulator again = direct_sum(x, weight, p, output.n, output.group,
                                           first_co + channel + c, output.coordinate);
#pragma unroll
      for (int i = 0; i < kSumChannels; ++i) {
        if (i == c) total.channel[i] = again;
      }
    }
  }
  ChannelVector offset{};
  if (p.has_bias) {
    const Element* source =
        bias + output.group * static_cast<Index>(p.out_channels) + first_co + channel;
#pragma unroll
    for (int c = 0; c < kSumChannels; ++c) {
      if (kEvery || c < channels) offset.channel[c] = to_accumulator(source[c]);
    }
  }
  Element* target = output.y + channel * output.channel_step;
#pragma unroll
  for (int c = 0; c < kSumChannels; ++c) {
    if (kEvery || c < channels) store(target, finish(total.channel[c], offset.channel[c], p));
    target += output.channel_step;
  }
}

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    convt3d_implicit_gemm(const Element* __restrict__ x, const Element* __restrict__ weight,
                          const uint4* __restrict__ packed, const Element* __restrict__ bias,
                          Element* __restrict__ y, const __grid_constant__ Params p) {
  constexpr int kParts = TensorMath::kParts;
  constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  unsigned char* const shared = dynamic_shared_memory();
  const GemmParams& gemm = p.gemm;

  const Index in_channels = static_cast<Index>(p.in_channels);
  const Index out_channels = static_cast<Index>(p.out_channels);
  const Index groups = static_cast<Index>(p.groups);
  const Index input_h = static_cast<Index>(p.axis[1].input);
  const Index input_w = static_cast<Index>(p.axis[2].input);
  const Index input_volume = static_cast<Index>(p.axis[0].input) * input_h * input_w;
  const Index output_h = static_cast<Index>(p.axis[1].output);
  const Index output_w = static_cast<Index>(p.axis[2].output);
  const Index output_volume = static_cast<Index>(p.axis[0].output) * output_h * output_w;
  const Index kernel_h = static_cast<Index>(p.axis[1].kernel);
  const Index stride_w = static_cast<Index>(p.axis[2].stride);
  const Index dilation_w = static_cast<Index>(p.axis[2].dilation);
  const Index padding_w = static_cast<Index>(p.axis[2].padding);
  const Index k_steps = (in_channels + TensorMath::kStepK - 1) / TensorMath::kStepK;

  const int tile_d = static_cast<int>(p.axis[0].tile);
  const int tile_h = static_cast<int>(p.axis[1].tile);
  const int tile_w = static_cast<int>(p.axis[2].tile);
  const int rows = tile_d * tile_h;
  const int m_tiles = gemm.m_tiles;
  const int stage_steps = gemm.stage_steps;
  const Index stage_channels = stage_steps * TensorMath::kStepK;
  const Index stage_taps_h = static_cast<Index>(gemm.stage_taps_h);
  const int stage_rows_h = static_cast<int>(gemm.stage_rows_h.divisor);
  const int pitch = gemm.channel_pitch * kElementBytes;
  const int step_h = static_cast<int>(p.axis[1].input_step);
  const int stages = gemm.stages;
  const int fragments = m_tiles * kParts * 32;  // of one k step and one tap along height

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_m = warp % gemm.warps_m;
  const int warp_n = warp / gemm.warps_m;

  // The rows and places in a row of this warp's tiles of 8 inputs.
  int tile_row[kWarpNTiles];     // -1 past the last row
  int tile_place[kWarpNTiles];   // first position
  int tile_offset[kWarpNTiles];  // bytes inside a stage, for the last tap along height
  WarpRows warp_rows{tile_d, 0, tile_h, 0};
#pragma unroll
  for (int i = 0; i < kWarpNTiles; ++i) {
    int place;
    const int row = divmod(warp_n * kWarpNTiles + i, gemm.row_tiles, &place);
    int h;
    const int d = divmod(row, gemm.tile_h, &h);
    tile_row[i] = row < rows ? row : -1;
    tile_place[i] = 8 * place;
    tile_offset[i] = row < rows ? ((d * stage_rows_h + h) * tile_w + 8 * place) * kElementBytes : 0;
    if (row < rows) warp_rows.include(d, h);
  }
  TensorMath::add_lane(lane, pitch, tile_offset);

  for (long long tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    // Output channels vary fastest, then segments and phases: neighbouring blocks read the same
    // inputs and write neighbouring rows.
    Index rest = static_cast<Index>(tile);
    const Index co_tile = rest % static_cast<Index>(p.co_tiles);
    rest /= static_cast<Index>(p.co_tiles);
    const Index segment = rest % static_cast<Index>(p.axis[2].tiles);
    rest /= static_cast<Index>(p.axis[2].tiles);
    Index phase_index[2];
    Index first_position[2];
#pragma unroll
    for (int a = 1; a >= 0; --a) {
      phase_index[a] = rest % static_cast<Index>(p.axis[a].phases);
      rest /= static_cast<Index>(p.axis[a].phases);
    }
#pragma unroll
    for (int a = 1; a >= 0; --a) {
      first_position[a] =
          rest % static_cast<Index>(p.axis[a].tiles) * static_cast<Index>(p.axis[a].tile);
      rest /= static_cast<Index>(p.axis[a].tiles);
    }
    const Index group = rest % groups;
    const Index n = rest / groups;
    const Index first_co = co_tile * static_cast<Index>(gemm.co_tile.divisor);
    const int co_count =
        static_cast<int>(min(static_cast<Index>(gemm.co_tile.divisor), out_channels - first_co));
    const Phase phase[2] = {phase_of_axis(p.axis[0], phase_index[0]),
                            phase_of_axis(p.axis[1], phase_index[1])};
    const Taps taps_d = taps_in_reach(p.axis[0], phase[0], first_position[0], tile_d);
    const Taps taps_h = taps_in_reach(p.axis[1], phase[1], first_position[1], tile_h);
    // Taps along height of the phases that are packed before this one.
    const Index taps_before =
        phase[1].first_tap * (kernel_h / static_cast<Index>(p.axis[1].tap_step)) +
        min(phase[1].first_tap, kernel_h % static_cast<Index>(p.axis[1].tap_step));
    const Element* const sample =
        x + static_cast<long long>(n * groups + group) * (in_channels * input_volume);

    const Index first_output = segment * static_cast<Index>(gemm.segment.divisor);
    const Index end_output = min(first_output + static_cast<Index>(gemm.segment.divisor), output_w);

    // Rows outside the input hold zeros: a warp skips the taps that meet no other.
    const Taps warp_taps_d =
        taps_in_reach(p.axis[0], phase[0], first_position[0] + warp_rows.first_d,
                      warp_rows.end_d - warp_rows.first_d);
    const Taps warp_taps_h =
        taps_in_reach(p.axis[1], phase[1], first_position[1] + warp_rows.first_h,
                      warp_rows.end_h - warp_rows.first_h);

    const Index slices = static_cast<Index>(p.axis[2].tap_slices);
    for (Index slice = 0; slice < slices; ++slice) {
      const Index first_tap = slice * static_cast<Index>(p.axis[2].tap_slice);
      const Index end_tap = min(first_tap + static_cast<Index>(p.axis[2].tap_slice),
                                static_cast<Index>(p.axis[2].kernel));
      // The first input that the segment needs, moved down to a multiple of 8 for wide copies.
      const Index lowest = first_output + padding_w - (end_tap - 1) * dilation_w;
      const Index first_input = (lowest > 0 ? lowest / stride_w : 0) & ~static_cast<Index>(7);
      const bool has_inputs =
          first_input < input_w && end_output - 1 + padding_w - first_tap * dilation_w >= 0;

      Accumulator sum[kWarpMTiles][kWarpNTiles][4];
#pragma unroll
      for (int m = 0; m < kWarpMTiles; ++m) {
#pragma unroll
        for (int i = 0; i < kWarpNTiles; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[m][i][j] = EmptySum<Accumulator>::value();
        }
      }

      const Index stages_h = (taps_h.end - taps_h.begin + stage_taps_h - 1) / stage_taps_h;
      const Index stages_c = (in_channels + stage_channels - 1) / stage_channels;
      const Index stage_count = has_inputs ? (taps_d.end - taps_d.begin) * stages_c * stages_h : 0;
      const uint4* const slice_weights =
          packed + static_cast<long long>(
                       (group * static_cast<Index>(p.co_tiles) + co_tile) * slices + slice) *
                       p.axis[0].kernel * k_steps * kernel_h * fragments;

      const auto load_stage = [&](const StageOfK& k, int buffer) {
        unsigned char* const memory = shared + buffer * gemm.stage_bytes;
        const int taps = static_cast<int>(min(stage_taps_h, taps_h.end - k.tap_h));
        XStage stage;
        stage.channel = k.channel;
        stage.first[0] = phase[0].origin + first_position[0] -
                         k.tap_d * static_cast<Index>(p.axis[0].input_step);
        stage.first[1] = phase[1].origin + first_position[1] - (k.tap_h + taps - 1) * step_h;
        stage.first[2] = first_input;
        stage.rows_h = tile_h + (taps - 1) * step_h;
        load_x(reinterpret_cast<Element*>(memory), sample, p, stage,
               static_cast<int>(stage_channels));
        uint4* const target = reinterpret_cast<uint4*>(memory + gemm.stage_weights);
        const Index kd = phase[0].first_tap + k.tap_d * static_cast<Index>(p.axis[0].tap_step);
        const Index first_step = k.channel / TensorMath::kStepK;
        const int steps =
            static_cast<int>(min(static_cast<Index>(stage_steps), k_steps - first_step));
        const uint4* const source =
            slice_weights + static_cast<long long>((kd * kernel_h + taps_before) * k_steps +
                                                   first_step * phase[1].taps + k.tap_h) *
                                fragments;
        if (taps == phase[1].taps) {
          load_fragments(target, source, steps * taps * fragments);
        } else {
          for (int step = 0; step < steps; ++step) {
            load_fragments(target + step * taps * fragments,
                           source + static_cast<long long>(step * phase[1].taps) * fragments,
                           taps * fragments);
          }
        }
      };

      const auto multiply_stage = [&](const StageOfK& k, int buffer) {
        if (k.tap_d < warp_taps_d.begin || k.tap_d >= warp_taps_d.end) return;
        const unsigned x_tile = shared_address(shared + buffer * gemm.stage_bytes);
        const unsigned weights =
            x_tile + static_cast<unsigned>(gemm.stage_weights) +
            static_cast<unsigned>(sizeof(uint4)) * (warp_m * kWarpMTiles * kParts * 32 + lane);
        const int taps = static_cast<int>(min(stage_taps_h, taps_h.end - k.tap_h));
        const int first = static_cast<int>(max(warp_taps_h.begin - k.tap_h, static_cast<Index>(0)));
        const int end = static_cast<int>(min(warp_taps_h.end - k.tap_h, static_cast<Index>(taps)));
        const int steps = static_cast<int>(
            min(static_cast<Index>(stage_steps), k_steps - k.channel / TensorMath::kStepK));
        for (int step = 0; step < steps; ++step) {
          const unsigned step_x = x_tile + step * TensorMath::kStepK * pitch;
          for (int tap = first; tap < end; ++tap) {
            TensorMath::XFragment fragment[kWarpNTiles];
            TensorMath::load(step_x + (taps - 1 - tap) * step_h * tile_w * kElementBytes, pitch,
                             tile_offset, fragment);
            const unsigned tap_weights =
                weights + static_cast<unsigned>(sizeof(uint4)) * ((step * taps + tap) * fragments);
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

      StageOfK loaded{taps_d.begin, 0, taps_h.begin};
      StageOfK used = loaded;
      const auto next = [&](StageOfK& k) {
        k.advance(taps_h, stage_taps_h, stage_channels, in_channels);
      };
      __syncthreads();  // the products of the previous slice or tile have been used
      for (int s = 0; s < stages - 1; ++s) {
        if (s < stage_count) {
          load_stage(loaded, s);
          next(loaded);
        }
        commit_copies();
      }
      int buffer = 0;
      for (Index s = 0; s < stage_count; ++s) {
        if (stages == 2) {
          wait_for_copies<0>();
        } else if (stages == 3) {
          wait_for_copies<1>();
        } else {
          wait_for_copies<2>();
        }
        // The stage has arrived for all threads, and all have used the buffer that is filled next.
        __syncthreads();
        if (s + stages - 1 < stage_count) {
          load_stage(loaded, buffer == 0 ? stages - 1 : buffer - 1);
          next(loaded);
        }
        commit_copies();
        multiply_stage(used, buffer);
        next(used);
        buffer = buffer + 1 == stages ? 0 : buffer + 1;
      }

      Accumulator* const product = reinterpret_cast<Accumulator*>(shared);
      ChannelVector* const sums = reinterpret_cast<ChannelVector*>(shared + gemm.sums);
      const int product_pitch = gemm.product_pitch;
      const int pass_rows = static_cast<int>(gemm.pass_rows.divisor);
      const int segment_outputs = static_cast<int>(gemm.segment.divisor);
      const int sum_channels = gemm.sum_channels;
      const int co_tile_size = static_cast<int>(gemm.co_tile.divisor);
      const int parts = (co_count + sum_channels - 1) / sum_channels;
      for (int first_row = 0; first_row < rows; first_row += pass_rows) {
        __syncthreads();  // the stages, or the products of the previous pass, have been used
#pragma unroll
        for (int i = 0; i < kWarpNTiles; ++i) {
          const int row = tile_row[i] - first_row;
          if (tile_row[i] < 0 || row < 0 || row >= pass_rows) continue;
          Accumulator* const even = product +
                                    (row * tile_w + tile_place[i] + lane % 4 * 2) * product_pitch +
                                    warp_m * kWarpMTiles * 16 + lane / 4;
          Accumulator* const odd = even + product_pitch;
#pragma unroll
          for (int m = 0; m < kWarpMTiles; ++m) {
            even[16 * m] = sum[m][i][0];
            odd[16 * m] = sum[m][i][1];
            even[16 * m + 8] = sum[m][i][2];
            odd[16 * m + 8] = sum[m][i][3];
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
          const Index output[3] = {
              phase_index[0] + (first_position[0] + d) * static_cast<Index>(p.axis[0].stride),
              phase_index[1] + (first_position[1] + h) * static_cast<Index>(p.axis[1].stride),
              first_output + place};
          if (first_row + row >= rows || output[0] >= p.axis[0].output || output[1] >= output_h ||
              output[2] >= end_output) {
            continue;
          }
          const OutputTaps taps = taps_of_output(
              p, output[2], first_tap, end_tap, product + row * tile_w * product_pitch, first_input,
              product_pitch, static_cast<int>(gemm.co_tile.divisor));
          const OutputRow target{
              n,
              group,
              {output[0], output[1], output[2]},
              y + static_cast<long long>(n * groups + group) * (out_channels * output_volume) +
                  first_co * output_volume + (output[0] * output_h + output[1]) * output_w +
                  output[2],
              output_volume};
          // Of the slices so far.
          const auto kept_sums = [&](int channel) {
            const int position = (first_row + row) * segment_outputs + place;
            return sums + (position * co_tile_size + channel) / kSumChannels;
          };
          const int end_channel = min((part + 1) * sum_channels, co_count);
          for (int channel = part * sum_channels; channel < end_channel; channel += kSumChannels) {
            const int channels = min(end_channel - channel, kSumChannels);
            ChannelVector total;
#pragma unroll
            for (int c = 0; c < kSumChannels; ++c) {
              total.channel[c] = EmptySum<Accumulator>::value();
            }
            if (slice > 0) total = *kept_sums(channel);
            const Accumulator* source = taps.first + channel;
#pragma unroll 1
            for (int i = 0; i < taps.count; ++i) {
              const ChannelVector value = *reinterpret_cast<const ChannelVector*>(source);
#pragma unroll
              for (int c = 0; c < kSumChannels; ++c) {
                total.channel[c] = total.channel[c] + value.channel[c];
              }
              source += taps.step;
            }
            if (slice + 1 < slices) {
              *kept_sums(channel) = total;
            } else if (channels == kSumChannels) {
              store_channels<true>(total, target, first_co, channel, channels, x, weight, bias, p);
            } else {
              store_channels<false>(total, target, first_co, channel, channels, x, weight, bias, p);
            }
          }
        }
      }
    }
  }
}
