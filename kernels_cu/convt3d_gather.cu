// Deterministic transposed convolution on FMA units: any dtype, any sizes.
//
//   y[n, co, o] = bias[co] + sum over taps k, channels ci of x[n, ci, i] * w[ci, co, k],
//                 o + padding = i*stride + k*dilation on each axis
//
// As a GEMM, for one phase of the output (residue_class.cuh) and one group: gemm_m = output
// channels, gemm_n = output positions (n, md, mh, mw) of the phase, gemm_k = (taps of the phase) x
// (input channels).
//
//   block  kTileCo output channels x (blockDim.x * kTilePositions) positions of one phase
//   thread kTileCo output channels x kTilePositions positions, blockDim.x apart, so that a warp
//          reads and writes consecutive positions of a row
//   stage  weights of stage_taps taps x stage_channels channels, converted to the accumulator
//          type, in shared memory as [channel][tap][co]: the block loads them, consecutive threads
//          consecutive taps
//   x      straight from global memory through L1, one load for kTileCo multiply-adds
//
// Determinism: a thread owns its outputs and sums them in a fixed order (channel stages, then taps,
// then channels of the stage), so results are bit-identical from run to run and for every grid
// size. A product is made only if its input exists: padding contributes nothing, not even 0 * inf.
// Limits: none beyond 64-bit indices. Static shared memory, no workspace.
// Source of the phases: kernels_cu/residue_class.cuh.
#include <epilogue.cuh>
#include <residue_class.cuh>

/// (tap, channel) pairs of a stage; kMaxStageTaps bounds its taps. Python keeps to both.
constexpr int kStagePairs = 256;
constexpr int kMaxStageTaps = 64;

/// The weights of one (tap, channel) pair for a thread's output channels, loaded as vectors.
struct alignas(sizeof(Accumulator) * kTileCo < 16 ? sizeof(Accumulator) * kTileCo : 16)
    WeightFragment {
  Accumulator co[kTileCo];
};

/// What one tap of a stage means: where its weights are and how far it moves the input.
struct StageTap {
  Index weight;   // offset inside a (ci, co) kernel
  Index x;        // offset to subtract from the input's
  Index step[3];  // coordinates to subtract from the input's
};

/// One output position of a thread and the input that tap 0 reads for it.
struct Position {
  Index x;         // offset of channel 0 of the group
  Index input[3];  // coordinates; depth is negative where there is no output
  Index y;         // offset of channel 0 of the tile; -1 where there is no output
};

/// Adds one tap of a stage to the sums of a thread.
///
/// kEveryInside: all of the thread's positions have an input here, so nothing is tested in the
/// loop.
template <bool kEveryInside>
__device__ inline void add_tap(const Element* __restrict__ x, const Index (&offset)[kTilePositions],
                               const bool (&inside)[kTilePositions], Index channels,
                               Index channel_stride, const WeightFragment* weights,
                               Index weight_step, Accumulator (&sum)[kTilePositions][kTileCo]) {
#pragma unroll 2
  for (Index channel = 0; channel < channels; ++channel) {
    const WeightFragment weight = weights[channel * weight_step];
#pragma unroll
    for (int i = 0; i < kTilePositions; ++i) {
      if (kEveryInside || inside[i]) {
        const Accumulator value = to_accumulator(x[offset[i] + channel * channel_stride]);
#pragma unroll
        for (int co = 0; co < kTileCo; ++co) {
          sum[i][co] = multiply_add(value, weight.co[co], sum[i][co]);
        }
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    convt3d_gather(const Element* __restrict__ x, const Element* __restrict__ weight,
                   const Element* __restrict__ bias, Element* __restrict__ y,
                   const __grid_constant__ Params p) {
  __shared__ WeightFragment stage_weight[kStagePairs];
  __shared__ StageTap stage_tap[kMaxStageTaps];

  const Index input_h = static_cast<Index>(p.axis[1].input);
  const Index input_w = static_cast<Index>(p.axis[2].input);
  const Index output_h = static_cast<Index>(p.axis[1].output);
  const Index output_w = static_cast<Index>(p.axis[2].output);
  const Index input_volume = static_cast<Index>(p.axis[0].input) * input_h * input_w;
  const Index output_volume = static_cast<Index>(p.axis[0].output) * output_h * output_w;
  const Index kernel_h = static_cast<Index>(p.axis[1].kernel);
  const Index kernel_w = static_cast<Index>(p.axis[2].kernel);
  const Index kernel_volume = static_cast<Index>(p.axis[0].kernel) * kernel_h * kernel_w;
  const Index in_channels = static_cast<Index>(p.in_channels);
  const Index out_channels = static_cast<Index>(p.out_channels);
  const Index groups = static_cast<Index>(p.groups);
  const Index stage_taps = static_cast<Index>(p.stage_taps.divisor);
  const Index stage_channels = static_cast<Index>(p.stage_channels);

  for (long long tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    // Output channels vary fastest, then phases: neighbouring blocks read the same inputs, and the
    // phases along W fill the same rows of y.
    Index rest = static_cast<Index>(tile);
    const Index first_co = rest % static_cast<Index>(p.co_tiles) * kTileCo;
    rest /= static_cast<Index>(p.co_tiles);
    const Index group = rest % groups;
    rest /= groups;
    Index phase_index[3];
#pragma unroll
    for (int a = 2; a >= 0; --a) {
      phase_index[a] = rest % static_cast<Index>(p.axis[a].phases);
      rest /= static_cast<Index>(p.axis[a].phases);
    }
    const Phase phase[3] = {phase_of_axis(p.axis[0], phase_index[0]),
                            phase_of_axis(p.axis[1], phase_index[1]),
                            phase_of_axis(p.axis[2], phase_index[2])};
    const Index taps = phase[0].taps * phase[1].taps * phase[2].taps;
    // Counted in 64 bits: the last block may reach past 2^31.
    const long long first_position = static_cast<long long>(rest) * blockDim.x * kTilePositions;
    const long long positions = p.batch * p.axis[0].positions.divisor *
                                p.axis[1].positions.divisor * p.axis[2].positions.divisor;

    Position position[kTilePositions];
#pragma unroll
    for (int i = 0; i < kTilePositions; ++i) {
      const long long flat = first_position + i * static_cast<long long>(blockDim.x) + threadIdx.x;
      position[i] = {0, {-1, 0, 0}, -1};
      if (flat >= positions) continue;
      Index m[3];
      Index n = static_cast<Index>(flat);
      Index output[3];
#pragma unroll
      for (int a = 2; a >= 0; --a) {
        n = divmod(n, p.axis[a].positions, &m[a]);
        output[a] = phase_index[a] + m[a] * static_cast<Index>(p.axis[a].stride);
      }
      // The last position of a phase can lie outside when the output is no multiple of the stride.
      if (output[0] >= p.axis[0].output || output[1] >= output_h || output[2] >= output_w) continue;
#pragma unroll
      for (int a = 0; a < 3; ++a) position[i].input[a] = phase[a].origin + m[a];
      position[i].x = (n * groups + group) * in_channels * input_volume +
                      (position[i].input[0] * input_h + position[i].input[1]) * input_w +
                      position[i].input[2];
      position[i].y = ((n * groups + group) * out_channels + first_co) * output_volume +
                      (output[0] * output_h + output[1]) * output_w + output[2];
    }

    Accumulator sum[kTilePositions][kTileCo];
#pragma unroll
    for (int i = 0; i < kTilePositions; ++i) {
#pragma unroll
      for (int co = 0; co < kTileCo; ++co) sum[i][co] = EmptySum<Accumulator>::value();
    }

    for (Index first_ci = 0; first_ci < in_channels && taps > 0; first_ci += stage_channels) {
      const Index channels = min(stage_channels, in_channels - first_ci);
      for (Index first_tap = 0; first_tap < taps; first_tap += stage_taps) {
        const Index tap_count = min(stage_taps, taps - first_tap);
        __syncthreads();  // the previous stage has been used
        for (Index t = threadIdx.x; t < tap_count; t += blockDim.x) {
          const Index tap = first_tap + t;
          const Index j[3] = {tap / phase[2].taps / phase[1].taps,
                              tap / phase[2].taps % phase[1].taps, tap % phase[2].taps};
          Index k[3];
          StageTap entry;
#pragma unroll
          for (int a = 0; a < 3; ++a) {
            k[a] = phase[a].first_tap + j[a] * static_cast<Index>(p.axis[a].tap_step);
            entry.step[a] = j[a] * static_cast<Index>(p.axis[a].input_step);
          }
          entry.weight = (k[0] * kernel_h + k[1]) * kernel_w + k[2];
          entry.x = (entry.step[0] * input_h + entry.step[1]) * input_w + entry.step[2];
          stage_tap[t] = entry;
        }
        __syncthreads();  // the taps of the stage are known
        for (int e = threadIdx.x; e < stage_taps * channels * kTileCo; e += blockDim.x) {
          Index t;
          const Index pair = divmod(static_cast<Index>(e), p.stage_taps, &t);
          const int co = static_cast<int>(pair % kTileCo);
          const Index channel = pair / kTileCo;
          // Channels past the last are computed from zeros and not stored.
          Accumulator value{};
          if (t < tap_count && first_co + co < out_channels) {
            const Index ci = group * in_channels + first_ci + channel;
            value = to_accumulator(
                weight[(ci * out_channels + first_co + co) * kernel_volume + stage_tap[t].weight]);
          }
          stage_weight[channel * stage_taps + t].co[co] = value;
        }
        __syncthreads();  // the stage is complete

        for (Index t = 0; t < tap_count; ++t) {
          const StageTap tap = stage_tap[t];
          Index offset[kTilePositions];
          bool inside[kTilePositions];
          bool every = true;
          bool any = false;
#pragma unroll
          for (int i = 0; i < kTilePositions; ++i) {
            inside[i] = true;
#pragma unroll
            for (int a = 0; a < 3; ++a) {
              const Index coordinate = position[i].input[a] - tap.step[a];
              inside[i] &= static_cast<UnsignedIndex>(coordinate) <
                           static_cast<UnsignedIndex>(p.axis[a].input);
            }
            every &= inside[i];
            any |= inside[i];
            offset[i] = position[i].x - tap.x + first_ci * input_volume;
          }
          // Decided for the whole warp: lanes that went different ways would take turns. The block
          // is made of whole warps, and all of them run this loop.
          if (__all_sync(0xffffffffu, every)) {
            add_tap<true>(x, offset, inside, channels, input_volume, stage_weight + t, stage_taps,
                          sum);
          } else if (any) {
            add_tap<false>(x, offset, inside, channels, input_volume, stage_weight + t, stage_taps,
                           sum);
          }
        }
      }
    }

#pragma unroll
    for (int co = 0; co < kTileCo; ++co) {
      if (first_co + co >= out_channels) break;
      Accumulator offset{};
      if (p.has_bias) offset = to_accumulator(bias[group * out_channels + first_co + co]);
#pragma unroll
      for (int i = 0; i < kTilePositions; ++i) {
        if (position[i].y < 0) continue;
        store(y + position[i].y + co * output_volume, finish(sum[i][co], offset, p));
      }
    }
  }
}
