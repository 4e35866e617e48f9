// From products to outputs, for the rows of the implicit GEMM: which products make up an output,
// and how its sums are stored.
#pragma once
#include <direct_sum.cuh>
#include <epilogue.cuh>
#include <ptx.cuh>

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

/// Returns the place of a lane among the 32 outputs of its warp: 8 lanes in a row take every
/// stride-th one, so that their products lie one input apart, in different banks. The warp still
/// fills whole sectors of y.
__device__ inline int interleaved_lane(int lane, int log2_stride) {
  const int group = 8 << log2_stride;
  return (lane & -group) | (lane & 7) << log2_stride | (lane & (group - 1)) >> 3;
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
