// The last step of the gradient of the weights: the sum of its splits, in their order.
//
//   thread one weight, consecutive threads consecutive ones of the sums: (tap, ci, co)
//
// A sum that is NaN is computed again from its definition, without the zeros that stood for what
// does not exist in grad_output: an infinity of x times such a zero is not part of it.
//
// Deterministic. Limits: none beyond 64-bit indices.
#include <convt3d_params.cuh>
#include <element.cuh>

/// Returns the sum of the products of one weight, position by position.
__device__ inline Accumulator direct_grad_weight(const Element* __restrict__ x,
                                                 const Element* __restrict__ grad_output,
                                                 const Params& p, long long ci, long long co,
                                                 long long tap) {
  const long long k[3] = {tap / p.axis[2].kernel / p.axis[1].kernel,
                          tap / p.axis[2].kernel % p.axis[1].kernel, tap % p.axis[2].kernel};
  const long long group = ci / p.in_channels;
  const long long x_volume = p.axis[0].input * p.axis[1].input * p.axis[2].input;
  const long long y_volume = p.axis[0].output * p.axis[1].output * p.axis[2].output;
  Accumulator sum{};
  for (long long n = 0; n < p.batch; ++n) {
    const Element* const channel = x + (n * p.groups * p.in_channels + ci) * x_volume;
    const Element* const gradient =
        grad_output + ((n * p.groups + group) * p.out_channels + co) * y_volume;
    for (long long i = 0; i < x_volume; ++i) {
      const long long input[3] = {i / p.axis[2].input / p.axis[1].input,
                                  i / p.axis[2].input % p.axis[1].input, i % p.axis[2].input};
      long long place = 0;
      bool exists = true;
      for (int a = 0; a < 3; ++a) {
        const AxisParams& axis = p.axis[a];
        const long long output = input[a] * axis.stride + k[a] * axis.dilation - axis.padding;
        exists &= 0 <= output && output < axis.output;
        place = place * axis.output + output;
      }
      if (!exists) continue;
      sum =
          multiply_add(conjugate(to_accumulator(channel[i])), to_accumulator(gradient[place]), sum);
    }
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    sum_grad_weight(const Element* __restrict__ x, const Element* __restrict__ grad_output,
                    const Accumulator* __restrict__ sums, Element* __restrict__ grad_weight,
                    const __grid_constant__ Params p) {
  const long long in_channels = p.groups * p.in_channels;
  const long long count = p.kernel_volume * in_channels * p.out_channels;
  const long long splits = p.grad_weight.splits * p.grad_weight.warps_k;
  const long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (long long e = first; e < count; e += static_cast<long long>(gridDim.x) * blockDim.x) {
    Accumulator sum{};
    for (long long split = 0; split < splits; ++split) sum = sum + sums[split * count + e];
    const long long co = e % p.out_channels;
    const long long ci = e / p.out_channels % in_channels;
    const long long tap = e / p.out_channels / in_channels;
    if (is_nan(sum)) sum = direct_grad_weight(x, grad_output, p, ci, co, tap);
    store(grad_weight + (ci * p.out_channels + co) * p.kernel_volume + tap, sum);
  }
}
