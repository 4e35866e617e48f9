// Where a weight is: weights are (input channels, output channels per group, taps), for the
// operation itself and for the gradient of its input, which is a correlation of y's gradient with
// them.
#pragma once
#include <convt3d_params.cuh>
#include <element.cuh>

/// Returns the offset of the weights of a pair of channels.
///
/// ci, co  channels that a kernel sums over and writes, within the group
__device__ inline Index weight_channels(const Params& p, Index group, Index ci, Index co) {
  return group * static_cast<Index>(p.in_channels * p.out_channels * p.kernel_volume) +
         ci * static_cast<Index>(p.weight_in_step) + co * static_cast<Index>(p.weight_out_step);
}

/// Returns the offset of a tap among them; gradients count from the last one.
///
/// tap  counted along width first
__device__ inline Index weight_tap(const Params& p, Index tap) {
  return p.is_gradient ? static_cast<Index>(p.kernel_volume) - 1 - tap : tap;
}

/// Returns the factor that a weight is: for gradients its conjugate.
__device__ inline Accumulator weight_factor(const Params& p, Element weight) {
  const Accumulator value = to_accumulator(weight);
  return p.is_gradient ? conjugate(value) : value;
}
