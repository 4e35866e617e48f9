// Weights in the order in which the warps of the implicit GEMM load them.
//
//   packed [group][co tile][slice of taps along W][kd][phase along H][k step][kh of the phase]
//          [m tile][part][lane]
//
// of 16 bytes each, so that a stage of the pipeline is one piece: lane's fragment of a 16 x kStepK
// matrix (tensor_core.cuh) whose rows are (tap along W, output channel) pairs, channels fastest,
// and whose columns are input channels. Split precisions have two parts, hi and lo. Rows past the
// last pair and columns past the last channel are zeros.
//
// For wgmma an m tile is [8 rows][part][half of the k][column], each 16 bytes of consecutive k.
//
//   thread one lane of one m tile: all its parts
//
// Deterministic. Limits: none beyond the weights' own.
#include <convt3d_params.cuh>
#include <tensor_core.cuh>
#include <weight_layout.cuh>

/// Reads one weight of an m tile; zero outside.
struct WeightOfTile {
  const Element* weight;  // of channel 0 of the k step, tap (kd, kh, first of the slice), co tile
  Index channel_stride;
  Index co_stride;
  int tap_stride;  // 1, or -1 for gradients
  int channels;
  int taps;
  int out_channels;
  int first_row;
  const FastDivmod& co_tile;

  __device__ Element operator()(int row, int channel) const {
    int co;
    const int tap = divmod(first_row + row, co_tile, &co);
    Element value{};
    if (tap < taps && co < out_channels && channel < channels) {
      value = weight[channel * channel_stride + co * co_stride + tap * tap_stride];
    }
    return value;
  }
};

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    pack_weight(const Element* __restrict__ weight, uint4* __restrict__ packed,
                const __grid_constant__ Params p) {
  constexpr int kParts = TensorMath::kParts;
  const Index kernel_d = static_cast<Index>(p.axis[0].kernel);
  const Index kernel_h = static_cast<Index>(p.axis[1].kernel);
  const Index kernel_w = static_cast<Index>(p.axis[2].kernel);
  const Index in_channels = static_cast<Index>(p.in_channels);
  const Index out_channels = static_cast<Index>(p.out_channels);
  const Index steps = (in_channels + TensorMath::kStepK - 1) / TensorMath::kStepK;
  const int m_tiles = p.gemm.m_tiles;

  // `tiles` counts lanes. In 64 bits: the last block may reach past 2^31.
  const long long place = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (long long e = place; e < p.tiles; e += static_cast<long long>(gridDim.x) * blockDim.x) {
    const int lane = static_cast<int>(e % 32);
    Index rest = static_cast<Index>(e / 32);
    const int m_tile = static_cast<int>(rest % m_tiles);
    rest /= m_tiles;
    // The taps of a phase along H are tap_step apart; the first kernel_h % tap_step phases have one
    // more than the others.
    const Index tap_step = static_cast<Index>(p.axis[1].tap_step);
    Index in_kd = rest % (steps * kernel_h);
    rest /= steps * kernel_h;
    const Index longer = kernel_h % tap_step;
    Index taps = kernel_h / tap_step + 1;
    Index phase = in_kd / (taps * steps);
    if (phase >= longer) {
      in_kd -= longer * taps * steps;
      --taps;
      phase = longer + in_kd / (taps * steps);
      in_kd -= (phase - longer) * taps * steps;
    } else {
      in_kd -= phase * taps * steps;
    }
    const Index kh = phase + in_kd % taps * tap_step;
    const Index first_ci = in_kd / taps * TensorMath::kStepK;
    const Index kd = rest % kernel_d;
    rest /= kernel_d;
    const Index first_kw =
        rest % static_cast<Index>(p.axis[2].tap_slices) * static_cast<Index>(p.axis[2].tap_slice);
    rest /= static_cast<Index>(p.axis[2].tap_slices);
    const Index first_co =
        rest % static_cast<Index>(p.co_tiles) * static_cast<Index>(p.gemm.co_tile.divisor);
    const Index group = rest / static_cast<Index>(p.co_tiles);

    const WeightOfTile fetch{
        weight + weight_channels(p, group, first_ci, first_co) +
            weight_tap(p, (kd * kernel_h + kh) * kernel_w + first_kw),
        static_cast<Index>(p.weight_in_step),
        static_cast<Index>(p.weight_out_step),
        p.is_gradient ? -1 : 1,
        static_cast<int>(min(in_channels - first_ci, static_cast<Index>(TensorMath::kStepK))),
        static_cast<int>(min(static_cast<Index>(p.axis[2].tap_slice), kernel_w - first_kw)),
        static_cast<int>(min(static_cast<Index>(p.gemm.co_tile.divisor), out_channels - first_co)),
        16 * m_tile,
        p.gemm.co_tile};
    uint4 part[kParts];
    pack_weights(lane, fetch, part);
    const long long tile = e / kPackingLanes;
    for (int i = 0; i < kParts; ++i) {
      packed[(tile * kParts + i) * kPackingLanes + e % kPackingLanes] = part[i];
    }
  }
}
