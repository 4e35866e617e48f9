// From products to outputs, for the rows of the implicit GEMM: which products make up an output,
// and how its sums are stored.
#pragma once
#include <block_tile.cuh>
#include <direct_sum.cuh>
#include <epilogue.cuh>
#include <ptx.cuh>

/// Sums of consecutive output channels.
struct alignas(16) ChannelVector {
  Accumulator channel[kSumChannels];
};

__device__ inline ChannelVector operator+(const ChannelVector& a, const ChannelVector& b) {
  ChannelVector sum;
#pragma unroll
  for (int c = 0; c < kSumChannels; ++c) sum.channel[c] = a.channel[c] + b.channel[c];
  return sum;
}

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

/// The products of one output of a row, a fixed step apart for each channel.
struct alignas(8) OutputTaps {
  static constexpr unsigned kNone = ~0u;

  unsigned first;  // bytes from the start of the row's products
  unsigned last;   // kNone if there are none
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
  OutputTaps taps{0, OutputTaps::kNone};
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
  const auto place = [&] {
    return static_cast<unsigned>(static_cast<int>(input - first_input) * input_pitch +
                                 static_cast<int>(tap - first_tap) * tap_pitch);
  };
  taps.first = place();
  for (; tap < end_tap && input >= 0; tap += tap_step) {
    taps.last = place();
    input -= input_step;
  }
  return taps;
}

/// The outputs of one row of a block, of the channels that a thread sums.
struct alignas(16) RowOutputs {
  Index offset;       // of the first, from the first output of the block's first channel
  unsigned products;  // bytes before those of the row
  int count;          // 0 where the row does not exist
  int skipped;        // places before the first output, from where its sector of y begins
  int first_channel;
};
static_assert(sizeof(RowOutputs) <= 32, "cupy_convt3d/_plan_implicit_gemm.py keeps 32 bytes");

/// Finds the outputs of a line of a pass: the lines are its rows, for each part of the channels.
__device__ inline RowOutputs outputs_of_line(const Params& p, const BlockTile& tile, int first_row,
                                             int line) {
  const GemmParams& gemm = p.gemm;
  const Index output_h = static_cast<Index>(p.axis[1].output);
  const Index output_w = static_cast<Index>(p.axis[2].output);
  int row;
  const int first_channel =
      divmod(line, gemm.pass_rows, &row) * static_cast<int>(gemm.sum_channels.divisor);
  Index at[3];
  output_of_row(p, tile, first_row + row, at);
  const Index first = (at[0] * output_h + at[1]) * output_w + at[2];
  const bool exists = first_row + row < static_cast<int>(p.axis[0].tile * p.axis[1].tile) &&
                      at[0] < static_cast<Index>(p.axis[0].output) && at[1] < output_h;
  constexpr int kSumBytes = static_cast<int>(sizeof(Accumulator));
  RowOutputs outputs;
  outputs.offset = first + first_channel * tile.output_volume;
  outputs.products = static_cast<unsigned>(
      (row * static_cast<int>(p.axis[2].tile) * gemm.product_pitch + first_channel) * kSumBytes);
  outputs.count =
      exists ? static_cast<int>(min(static_cast<Index>(gemm.segment.divisor), output_w - at[2]))
             : 0;
  outputs.skipped = static_cast<int>(tile.y_offset + first) & gemm.sector_mask;
  outputs.first_channel = first_channel;
  return outputs;
}

/// Returns the place of a lane among the 32 outputs of its warp: 8 lanes in a row take every
/// stride-th one, so that their products lie one input apart, in different banks. The warp still
/// fills whole sectors of y.
__device__ inline int interleaved_lane(int lane, int log2_stride) {
  const int group = 8 << log2_stride;
  return (lane & -group) | (lane & 7) << log2_stride | (lane & (group - 1)) >> 3;
}

/// Stores the sums of consecutive output channels: bias, epilogue, rounding.
///
/// kEvery: there are kSumChannels channels, so that none is tested.
/// target  of the first channel; `channel_step` elements from one to the next
/// first_bias  the place of its bias
/// direct  returns the sum of a channel from its definition
template <bool kEvery, class DirectSum>
__device__ inline void store_channels(ChannelVector total, int channels, Element* target,
                                      Index channel_step, const Element* __restrict__ bias,
                                      Index first_bias, const DirectSum& direct, const Params& p) {
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
      const Accumulator again = empty_sum(p) + direct(c);
#pragma unroll
      for (int i = 0; i < kSumChannels; ++i) {
        if (i == c && total.channel[i] != total.channel[i]) total.channel[i] = again;
      }
    }
  }
  if (p.has_bias) {
#pragma unroll
    for (int c = 0; c < kSumChannels; ++c) {
      if (kEvery || c < channels)
        total.channel[c] = total.channel[c] + to_accumulator(bias[first_bias + c]);
    }
  }
#pragma unroll
  for (int c = 0; c < kSumChannels; ++c) {
    if (kEvery || c < channels) store(target, activate(total.channel[c], p));
    target += channel_step;
  }
}
