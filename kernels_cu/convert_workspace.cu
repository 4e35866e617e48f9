// Rounds the scatter's float32 workspace to y, once per element: the last launch for 16-bit floats.
//
//   block  plane_chunk consecutive elements of one (n, co) plane
//
// Determinism: every element is written once.
#include <convt3d_params.cuh>
#include <element.cuh>

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    convert_workspace(const Accumulator* __restrict__ total, Element* __restrict__ y,
                      const __grid_constant__ Params p) {
  const Index chunks = static_cast<Index>((p.plane + p.plane_chunk - 1) / p.plane_chunk);
  for (long long tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const Index plane = static_cast<Index>(tile) / chunks;
    const Index begin = static_cast<Index>(tile) % chunks * static_cast<Index>(p.plane_chunk);
    const Index end = min(begin + static_cast<Index>(p.plane_chunk), static_cast<Index>(p.plane));
    for (Index e = begin + threadIdx.x; e < end; e += blockDim.x) {
      store(y + plane * static_cast<Index>(p.plane) + e,
            total[plane * static_cast<Index>(p.plane) + e]);
    }
  }
}
