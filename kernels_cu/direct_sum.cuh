// One output from its definition, product by product.
#pragma once
#include <convt3d_params.cuh>
#include <element.cuh>
#include <weight_layout.cuh>

/// Returns the sum of the products of one output, taps in ascending order, channels inside.
///
/// Tensor cores multiply zeros where an input does not exist, and split operands into parts: with
/// infinities both make a NaN where the definition has none. Sums that came out as NaN are computed
/// again by this, so that NaNs and infinities are where they are without tensor cores.
__device__ inline Accumulator direct_sum(const Element* __restrict__ x,
                                         const Element* __restrict__ weight, const Params& p,
                                         Index n, Index group, Index co, const Index (&output)[3]) {
  Accumulator sum = EmptySum<Accumulator>::value();
  const Index in_channels = hidden(static_cast<Index>(p.in_channels));
  const Index kernel_h = static_cast<Index>(p.axis[1].kernel);
  const Index kernel_w = static_cast<Index>(p.axis[2].kernel);
  const Index input_h = static_cast<Index>(p.axis[1].input);
  const Index input_w = static_cast<Index>(p.axis[2].input);
  const Index input_volume = hidden(static_cast<Index>(p.axis[0].input)) * input_h * input_w;
  const Index kernel_volume = static_cast<Index>(p.kernel_volume);
  const Index weight_step = static_cast<Index>(p.weight_in_step);
  for (Index tap = 0; tap < kernel_volume; ++tap) {
    const Index k[3] = {tap / kernel_w / kernel_h, tap / kernel_w % kernel_h, tap % kernel_w};
    Index input[3];
    bool exists = true;
    for (int a = 0; a < 3; ++a) {
      const AxisParams& axis = p.axis[a];
      const Index stride = static_cast<Index>(axis.stride);
      const Index reach = output[a] * static_cast<Index>(axis.input_stride) +
                          static_cast<Index>(axis.origin + axis.padding) -
                          k[a] * static_cast<Index>(axis.dilation);
      input[a] = reach / stride;
      exists &= reach >= 0 && input[a] * stride == reach && input[a] < axis.input;
    }
    if (!exists) continue;
    const Element* source = x +
                            static_cast<long long>(n * static_cast<Index>(p.groups) + group) *
                                (in_channels * input_volume) +
                            (input[0] * input_h + input[1]) * input_w + input[2];
    const Element* factor = weight + weight_channels(p, group, 0, co) + weight_tap(p, tap);
    for (Index ci = 0; ci < in_channels; ++ci) {
      sum = multiply_add(to_accumulator(source[ci * input_volume]),
                         weight_factor(p, factor[ci * weight_step]), sum);
    }
  }
  return sum;
}
