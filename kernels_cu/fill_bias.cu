// Fills an accumulator array of y's shape with the bias (0 without one): what the scatter adds to.
//
//   block  plane_chunk consecutive elements of one (n, co) plane, so the channel is the same for
//   all threads
//
// Determinism: every element is written once.
#include <convt3d_params.cuh>
#include <element.cuh>

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    fill_bias(const Element* __restrict__ bias, Accumulator* __restrict__ total,
              const __grid_constant__ Params p) {
  const Index chunks = static_cast<Index>((p.plane + p.plane_chunk - 1) / p.plane_chunk);
  const Index channels = static_cast<Index>(p.groups * p.out_channels);
  for (long long tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const Index plane = static_cast<Index>(tile) / chunks;
    const Index begin = static_cast<Index>(tile) % chunks * static_cast<Index>(p.plane_chunk);
    const Index end = min(begin + static_cast<Index>(p.plane_chunk), static_cast<Index>(p.plane));
    Accumulator value{};
    if (p.has_bias) value = to_accumulator(bias[plane % channels]);
    for (Index e = begin + threadIdx.x; e < end; e += blockDim.x) {
      total[plane * static_cast<Index>(p.plane) + e] = value;
    }
  }
}
