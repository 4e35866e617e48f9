// Weights in the order in which the warps of the sub-pixel kernel load them.
//
//   packed [group][co tile][k step][kd][kh][step along W][8 output channels][part][lane]
//
// of 16 bytes each: lane's fragment of a 16 x kStepK matrix (tensor_core.cuh). Its rows are 8
// output channels of the even outputs along W, then of the odd ones; its columns input channels of
// one offset along W, or in halves of two (convt3d_subpixel.cu). Where an offset has no tap, and
// past the last channel, there are zeros.
//
//   thread one lane of one matrix: all its parts
//
// Deterministic. Limits: none beyond the weights' own.
#include <convt3d_params.cuh>
#include <tensor_core.cuh>

/// Reads one weight of a matrix; zero outside.
struct WeightOfMatrix {
  const Element* weight;  // of the first channels, tap (kd, kh, 0)
  Index channel_stride;
  Index co_stride;
  Index channels;
  Index out_channels;
  int kernel_w;
  int first_tap;    // along W, of even outputs
  int half_stride;  // of taps, from the first half of the columns to the second; 0 if they are one

  __device__ Element operator()(int row, int column) const {
    constexpr int kHalf = TensorMath::kStepK / 2;
    const int half = half_stride != 0 ? column / kHalf : 0;
    const int channel = column - half * kHalf;
    const int co = row % 8;
    const int tap = first_tap - half * half_stride + row / 8;
    Element value{};
    if (static_cast<unsigned>(tap) < static_cast<unsigned>(kernel_w) && channel < channels &&
        co < out_channels) {
      value = weight[channel * channel_stride + co * co_stride + tap];
    }
    return value;
  }
};

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    pack_subpixel(const Element* __restrict__ weight, uint4* __restrict__ packed,
                  const __grid_constant__ Params p) {
  constexpr int kParts = TensorMath::kParts;
  const SubpixelParams& subpixel = p.subpixel;
  const Index in_channels = static_cast<Index>(p.in_channels);
  const Index out_channels = static_cast<Index>(p.out_channels);
  const Index k_steps = (in_channels + subpixel.step_channels - 1) / subpixel.step_channels;
  const int steps_w = subpixel.offsets[2] / subpixel.step_offsets;
  const int stride_w = static_cast<int>(p.axis[2].stride);
  const Index kernel_w = static_cast<Index>(p.axis[2].kernel);
  const Index taps_dh = static_cast<Index>(p.axis[0].kernel) * static_cast<Index>(p.axis[1].kernel);
  const Index co_stride = taps_dh * kernel_w;
  const Index channel_stride = out_channels * co_stride;

  // `tiles` counts lanes. In 64 bits: the last block may reach past 2^31.
  const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (long long e = thread; e < p.tiles; e += static_cast<long long>(gridDim.x) * blockDim.x) {
    const int lane = static_cast<int>(e % 32);
    Index rest = static_cast<Index>(e / 32);
    const Index co_block = rest % subpixel.co_blocks;
    rest /= subpixel.co_blocks;
    const int step_w = static_cast<int>(rest % steps_w);
    rest /= steps_w;
    const Index tap = rest % taps_dh;
    rest /= taps_dh;
    const Index first_ci = rest % k_steps * subpixel.step_channels;
    rest /= k_steps;
    const Index first_co =
        (rest % static_cast<Index>(p.co_tiles) * subpixel.co_blocks + co_block) * 8;
    const Index group = rest / static_cast<Index>(p.co_tiles);

    const WeightOfMatrix fetch{weight + (group * in_channels + first_ci) * channel_stride +
                                   first_co * co_stride + tap * kernel_w,
                               channel_stride,
                               co_stride,
                               in_channels - first_ci,
                               out_channels - first_co,
                               static_cast<int>(kernel_w),
                               subpixel.first_tap[2] - step_w * subpixel.step_offsets * stride_w,
                               subpixel.step_offsets == 2 ? stride_w : 0};
    uint4 part[kParts];
    TensorMath::pack(lane, fetch, part);
    for (int i = 0; i < kParts; ++i) packed[(e / 32 * kParts + i) * 32 + lane] = part[i];
  }
}
