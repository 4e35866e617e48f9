// Makes y of the complete sums of a scatter with atomics: the last launch where there is an
// activation, or where y is of 16-bit floats and the sums are in a float32 workspace.
//
//   block  plane_chunk consecutive elements of one (n, co) plane
//
// The bias is in the sums already (fill_bias.cu). The sums may be y itself: each thread reads an
// element before it writes it, and no other thread touches it. Hence no __restrict__.
//
// Determinism: every element is written once.
#include <epilogue.cuh>

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    finish_sums(const Accumulator* total, Element* y, const __grid_constant__ Params p) {
  const Index chunks = static_cast<Index>((p.plane + p.plane_chunk - 1) / p.plane_chunk);
  for (long long tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const Index plane = static_cast<Index>(tile) / chunks;
    const Index begin = static_cast<Index>(tile) % chunks * static_cast<Index>(p.plane_chunk);
    const Index end = min(begin + static_cast<Index>(p.plane_chunk), static_cast<Index>(p.plane));
    for (Index e = begin + threadIdx.x; e < end; e += blockDim.x) {
      const Index place = plane * static_cast<Index>(p.plane) + e;
      store(y + place, finish(total[place], EmptySum<Accumulator>::value(), p));
    }
  }
}
