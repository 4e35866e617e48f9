// Weights in the order in which the warps of the depth-to-space kernel load them.
//
//   packed [group][k step][m tile][part][lane]
//
// of 16 bytes each: lane's fragment of a 16 x kStepK matrix (tensor_core.cuh). The m tiles are [kd]
// [kh][co tile], their rows as convt3d_depth_to_space.cu describes them, their columns input
// channels. Rows and columns past the last channel are zeros.
//
// For wgmma an m tile has 8 rows: [part][half of the k][column], each 16 bytes of consecutive k.
//
//   thread one lane of one m tile: all its parts
//
// Deterministic. Limits: none beyond the weights' own.
#include <convt3d_params.cuh>
#include <tensor_core.cuh>

constexpr int kTapsW = CONVT3D_TAPS_W;
constexpr int kTileChannels = kMTileRows / kTapsW;

/// Reads one weight of an m tile; zero outside.
struct WeightOfTile {
  const Element* weight;  // of the first channels of the k step and m tile, tap (kd, kh, 0)
  Index channel_stride;
  Index co_stride;
  Index channels;
  Index out_channels;

  __device__ Element operator()(int row, int channel) const {
    const int co = row % kTileChannels;
    const int kw = row / kTileChannels;
    Element value{};
    if (channel < channels && co < out_channels) {
      value = weight[channel * channel_stride + co * co_stride + kw];
    }
    return value;
  }
};

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    pack_depth_to_space(const Element* __restrict__ weight, uint4* __restrict__ packed,
                        const __grid_constant__ Params p) {
  constexpr int kParts = TensorMath::kParts;
  const Index kernel_h = static_cast<Index>(p.axis[1].kernel);
  const Index in_channels = static_cast<Index>(p.in_channels);
  const Index out_channels = static_cast<Index>(p.out_channels);
  const Index steps = (in_channels + TensorMath::kStepK - 1) / TensorMath::kStepK;
  const Index co_stride = static_cast<Index>(p.axis[0].kernel) * kernel_h * kTapsW;
  const Index channel_stride = out_channels * co_stride;

  // `tiles` counts lanes. In 64 bits: the last block may reach past 2^31.
  const long long place = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (long long e = place; e < p.tiles; e += static_cast<long long>(gridDim.x) * blockDim.x) {
    const int lane = static_cast<int>(e % kPackingLanes);
    const long long tile = e / kPackingLanes;
    Index rest = static_cast<Index>(tile);
    Index co_tile;
    Index tap = divmod(rest % static_cast<Index>(p.gemm.m_tiles), p.gemm.co_tile, &co_tile);
    rest /= static_cast<Index>(p.gemm.m_tiles);
    const Index first_ci = rest % steps * TensorMath::kStepK;
    const Index group = rest / steps;
    const Index first_co = co_tile * kTileChannels;
    const WeightOfTile fetch{weight + (group * in_channels + first_ci) * channel_stride +
                                 first_co * co_stride + tap * kTapsW,
                             channel_stride, co_stride, in_channels - first_ci,
                             out_channels - first_co};
    uint4 part[kParts];
    pack_weights(lane, fetch, part);
    for (int i = 0; i < kParts; ++i) packed[(tile * kParts + i) * kPackingLanes + lane] = part[i];
  }
}
