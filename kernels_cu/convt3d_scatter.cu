// col2im-style transposed convolution: every input is multiplied with its weights once, and the
// products are combined in shared memory before anything goes to y.
//
//   y[n, co, i*stride + k*dilation - padding] += x[n, ci, i] * w[ci, co, k]
//
// As a GEMM, for one group: gemm_m = (output channels) x (taps), gemm_n = input positions,
// gemm_k = input channels; its result is what col2im would add up.
//
//   block  kTileCo output channels x a slice of the taps x a box of inputs of one sample, at most
//          blockDim.x * kTilePositions of them (AxisParams::tile, tap_slice)
//   thread kTilePositions inputs, blockDim.x apart; kTileTaps taps x kTileCo channels at a time
//   stage  weights of kTileTaps taps x kStageChannels channels, in shared memory as
//          [channel][tap][co]
//   sums   the outputs that the box reaches (AxisParams::reach), in dynamic shared memory as
//          [co][od][oh][ow]; one tap at a time is added to them, because for one tap different
//          inputs meet different outputs
//
// Where owns_output is set no other block adds to a block's outputs: on each axis either
// stride >= dilation*(kernel - 1) + 1, so that no two inputs meet, or the box spans the whole
// input. The block then stores its part of y, bias, activation and holes included, in full rows: no
// zero fill, no atomics, and bit-identical from run to run.
//
// Otherwise the sums are added to `total`, one atomic for each output that was touched. `total` was
// filled with the bias before (fill_bias.cu); it is y itself or, for 16-bit floats, a float32
// workspace. Its last bits depend on the order in which blocks arrive. Where y needs more than the
// sums, a conversion or an activation, finish_sums.cu comes after that.
//
// Limits: the sums fit shared memory because Python cuts the inputs and the taps into small boxes.
#include <epilogue.cuh>

/// Input channels of a stage of weights.
constexpr int kStageChannels = 32;

/// The weights of one input channel for a thread's taps and output channels.
struct alignas(16) WeightFragment {
  Accumulator value[kTileTaps][kTileCo];
};

/// A box of coordinates: of inputs, taps or outputs.
struct Box {
  Index begin[3];
  Index end[3];
};

/// Returns the box of outputs that a block must write, in output coordinates.
///
/// Owned: from the first output of the block's first input to that of the next block's, the last
/// block to the end of the axis. Shared: all outputs that the block can reach.
__device__ inline void outputs_of_axis(const AxisParams& axis, bool owned, Index tile_index,
                                       Index origin, Index* begin, Index* end) {
  const Index output = static_cast<Index>(axis.output);
  const Index cell = static_cast<Index>(axis.tile * axis.stride);
  *begin = max(origin, static_cast<Index>(0));
  *end = min(origin + static_cast<Index>(axis.reach), output);
  if (owned) {
    if (tile_index == 0) *begin = 0;
    *end = tile_index + 1 == axis.tiles ? output : min(origin + cell, output);
  }
}

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    convt3d_scatter(const Element* __restrict__ x, const Element* __restrict__ weight,
                    const Element* __restrict__ bias, Element* __restrict__ y,
                    Accumulator* __restrict__ total, const __grid_constant__ Params p) {
  __shared__ WeightFragment stage_weight[kStageChannels];
  __shared__ Index stage_target[kTileTaps];  // offset of a tap's outputs inside the sums
  Accumulator* sums = reinterpret_cast<Accumulator*>(dynamic_shared_memory());

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
  const Index kernel_w = static_cast<Index>(p.axis[2].kernel);
  const Index kernel_volume = static_cast<Index>(p.axis[0].kernel) * kernel_h * kernel_w;
  const Index reach_h = static_cast<Index>(p.axis[1].reach);
  const Index reach_w = static_cast<Index>(p.axis[2].reach);
  const Index reach_volume = static_cast<Index>(p.axis[0].reach) * reach_h * reach_w;

  for (long long block = blockIdx.x; block < p.tiles; block += gridDim.x) {
    // Output channels vary fastest: neighbouring blocks read the same inputs.
    Index rest = static_cast<Index>(block);
    const Index first_co = rest % static_cast<Index>(p.co_tiles) * kTileCo;
    rest /= static_cast<Index>(p.co_tiles);
    const Index group = rest % groups;
    rest /= groups;
    Box taps;
    Index tile_index[3];
    Index first_input[3];
    Index origin[3];  // output coordinate of sums[0]; negative inside the padding
#pragma unroll
    for (int a = 2; a >= 0; --a) {
      const AxisParams& axis = p.axis[a];
      tile_index[a] = rest % static_cast<Index>(axis.tiles);
      rest /= static_cast<Index>(axis.tiles);
      const Index slice = rest % static_cast<Index>(axis.tap_slices);
      rest /= static_cast<Index>(axis.tap_slices);
      taps.begin[a] = slice * static_cast<Index>(axis.tap_slice);
      taps.end[a] =
          min(taps.begin[a] + static_cast<Index>(axis.tap_slice), static_cast<Index>(axis.kernel));
      first_input[a] = tile_index[a] * static_cast<Index>(axis.tile);
      origin[a] = static_cast<Index>(first_input[a] * axis.stride + taps.begin[a] * axis.dilation -
                                     axis.padding);
    }
    const Index n = rest;

    // The inputs of this thread: offsets into x, -1 where there is none, and into the sums for tap
    // 0.
    Index input[kTilePositions];
    Index target[kTilePositions];
#pragma unroll
    for (int i = 0; i < kTilePositions; ++i) {
      Index within[3];
      Index flat = i * static_cast<Index>(blockDim.x) + static_cast<Index>(threadIdx.x);
#pragma unroll
      for (int a = 2; a >= 0; --a) flat = divmod(flat, p.axis[a].tile_divmod, &within[a]);
      bool exists = flat == 0;
#pragma unroll
      for (int a = 0; a < 3; ++a) exists &= first_input[a] + within[a] < p.axis[a].input;
      input[i] = exists
                     ? (n * groups + group) * in_channels * input_volume +
                           ((first_input[0] + within[0]) * input_h + first_input[1] + within[1]) *
                               input_w +
                           first_input[2] + within[2]
                     : -1;
      target[i] = exists ? static_cast<Index>((within[0] * p.axis[0].stride * reach_h +
                                               within[1] * p.axis[1].stride) *
                                                  reach_w +
                                              within[2] * p.axis[2].stride)
                         : 0;
    }

    __syncthreads();  // the previous block of work has written its sums
    for (Index e = threadIdx.x; e < kTileCo * reach_volume; e += blockDim.x) {
      sums[e] = EmptySum<Accumulator>::value();
    }

    const Index slice_h = taps.end[1] - taps.begin[1];
    const Index slice_w = taps.end[2] - taps.begin[2];
    const Index tap_count = (taps.end[0] - taps.begin[0]) * slice_h * slice_w;
    for (Index first_tap = 0; first_tap < tap_count; first_tap += kTileTaps) {
      Accumulator column[kTilePositions][kTileTaps][kTileCo];
#pragma unroll
      for (int i = 0; i < kTilePositions; ++i) {
#pragma unroll
        for (int t = 0; t < kTileTaps; ++t) {
#pragma unroll
          for (int co = 0; co < kTileCo; ++co) column[i][t][co] = EmptySum<Accumulator>::value();
        }
      }
      for (Index first_ci = 0; first_ci < in_channels; first_ci += kStageChannels) {
        const Index channels = min(static_cast<Index>(kStageChannels), in_channels - first_ci);
        __syncthreads();  // the previous stage has been used
        for (int e = threadIdx.x; e < channels * kTileTaps * kTileCo; e += blockDim.x) {
          const int t = e % kTileTaps;
          const int co = e / kTileTaps % kTileCo;
          const int channel = e / (kTileTaps * kTileCo);
          // Taps and channels past the last are computed from zeros and not added.
          Accumulator value{};
          if (first_tap + t < tap_count) {
            const Index tap = first_tap + t;
            const Index kd = tap / slice_w / slice_h;
            const Index kh = tap / slice_w % slice_h;
            const Index kw = tap % slice_w;
            if (first_co + co < out_channels) {
              const Index ci = group * in_channels + first_ci + channel;
              value = to_accumulator(
                  weight[(ci * out_channels + first_co + co) * kernel_volume +
                         ((taps.begin[0] + kd) * kernel_h + taps.begin[1] + kh) * kernel_w +
                         taps.begin[2] + kw]);
            }
            if (co == 0 && channel == 0) {
              stage_target[t] = static_cast<Index>(
                  (kd * p.axis[0].dilation * reach_h + kh * p.axis[1].dilation) * reach_w +
                  kw * p.axis[2].dilation);
            }
          }
          stage_weight[channel].value[t][co] = value;
        }
        __syncthreads();  // the stage is complete
#pragma unroll 2
        for (Index channel = 0; channel < channels; ++channel) {
          const WeightFragment fragment = stage_weight[channel];
#pragma unroll
          for (int i = 0; i < kTilePositions; ++i) {
            // Where there is no input, 0 * inf may become NaN: those columns are never added.
            Accumulator value{};
            if (input[i] >= 0) {
              value = to_accumulator(x[input[i] + (first_ci + channel) * input_volume]);
            }
#pragma unroll
            for (int t = 0; t < kTileTaps; ++t) {
#pragma unroll
              for (int co = 0; co < kTileCo; ++co) {
                column[i][t][co] = multiply_add(value, fragment.value[t][co], column[i][t][co]);
              }
            }
          }
        }
      }
      // col2im. Two taps can meet in one output, so all threads add the same tap between two
      // barriers.
#pragma unroll
      for (int t = 0; t < kTileTaps; ++t) {
        if (first_tap + t < tap_count) {
          const Index shift = stage_target[t];
#pragma unroll
          for (int i = 0; i < kTilePositions; ++i) {
            if (input[i] < 0) continue;
#pragma unroll
            for (int co = 0; co < kTileCo; ++co) {
              Accumulator* place = sums + co * reach_volume + target[i] + shift;
              *place = *place + column[i][t][co];
            }
          }
        }
        __syncthreads();
      }
    }

    Box outputs;
#pragma unroll
    for (int a = 0; a < 3; ++a) {
      outputs_of_axis(p.axis[a], p.owns_output != 0, tile_index[a], origin[a], &outputs.begin[a],
                      &outputs.end[a]);
    }
    const Index box_volume =
        static_cast<Index>(p.axis[0].box.divisor * p.axis[1].box.divisor * p.axis[2].box.divisor);
    for (int co = 0; co < kTileCo; ++co) {
      if (first_co + co >= out_channels) break;
      Accumulator offset{};
      if (p.has_bias) offset = to_accumulator(bias[group * out_channels + first_co + co]);
      for (Index e = threadIdx.x; e < box_volume; e += blockDim.x) {
        Index output[3];
        Index rest_of_box = e;
        bool in_box = true;
        bool reached = true;
#pragma unroll
        for (int a = 2; a >= 0; --a) {
          rest_of_box = divmod(rest_of_box, p.axis[a].box, &output[a]);
          output[a] += outputs.begin[a];
          in_box &= output[a] < outputs.end[a];
          reached &= static_cast<UnsignedIndex>(output[a] - origin[a]) <
                     static_cast<UnsignedIndex>(p.axis[a].reach);
        }
        if (!in_box) continue;
        Accumulator sum = EmptySum<Accumulator>::value();
        if (reached) {
          sum = sums[co * reach_volume +
                     ((output[0] - origin[0]) * reach_h + output[1] - origin[1]) * reach_w +
                     output[2] - origin[2]];
        }
        const Index target_of_sum =
            ((n * groups + group) * out_channels + first_co + co) * output_volume +
            (output[0] * output_h + output[1]) * output_w + output[2];
        if (p.owns_output) {
          store(y + target_of_sum, finish(sum, offset, p));
        } else if (!EmptySum<Accumulator>::is(sum)) {
          atomic_add(total + target_of_sum, sum);
        }
      }
    }
  }
}
