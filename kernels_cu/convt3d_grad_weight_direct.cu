// Deterministic gradient of the weights on FMA units: any dtype, a sum over positions in fixed
// splits.
//
//   grad_weight[ci, co, k] = sum over n, i of conj(x[n, ci, i]) *
//                            grad_output[n, co, i*stride + k*dilation - padding]
//
//   block  a tile of the weights (grad_weight_tile.cuh) and one split of the stages
//   thread kTileCi input channels x kTileCo output channels of one tap: an item. Consecutive
//          threads take consecutive taps. Where there are fewer items than threads, warps_k threads
//          share one, and each takes every warps_k-th row of a stage
//   stage  rows of x and grad_output as [channel][row][position], both loaded once for all taps of
//          the block; `stages` of them in dynamic shared memory, filled by cp.async
//   sums   leave the block as [split][share][tap][ci][co]; sum_grad_weight.cu adds the splits
//
// Determinism: splits, and the order of stages inside one, are fixed; no atomics.
// Limits: sm_80, for its asynchronous copies. Where grad_output does not exist zeros are
// multiplied: sum_grad_weight corrects sums that came out as NaN.
#include <grad_weight_tile.cuh>
#include <pipeline.cuh>

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    convt3d_grad_weight_direct(const Element* __restrict__ x,
                               const Element* __restrict__ grad_output,
                               Accumulator* __restrict__ sums, const __grid_constant__ Params p) {
  unsigned char* const shared = dynamic_shared_memory();
  const GemmParams& gemm = p.gemm;
  const GradWeightParams& grad = p.grad_weight;

  const int stride_h = static_cast<int>(p.axis[1].stride);
  const int stride_w = static_cast<int>(p.axis[2].stride);
  const int rows = static_cast<int>(p.axis[1].tile);
  const int segment = static_cast<int>(gemm.segment.divisor);
  const int x_pitch = gemm.x.channel_pitch;
  const int y_row = grad.grad_output.row;
  const int y_pitch = grad.grad_output.channel_pitch;

  int item;
  const int share = divmod(static_cast<int>(threadIdx.x), grad.items, &item);

  for (long long index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const GradWeightTile tile = grad_weight_tile(static_cast<Index>(index), p);
    // Items are numbered (ci, co, kh, kw).
    int kw;
    int co_group;
    const int rest = divmod(item, grad.taps_w, &kw);
    const int taps_h = static_cast<int>(p.axis[1].tap_slice);
    const int kh = rest % taps_h;
    const int ci_group = divmod(rest / taps_h, grad.co_groups, &co_group);
    const bool works = share < grad.warps_k && kh < tile.taps_h && kw < tile.taps_w;
    const int x_offset = ci_group * kTileCi * x_pitch;
    const int y_offset = co_group * kTileCo * y_pitch +
                         kh * static_cast<int>(p.axis[1].dilation) * y_row +
                         kw * static_cast<int>(p.axis[2].dilation);

    Accumulator sum[kTileCi][kTileCo] = {};

    StageOfPositions loaded(tile, p);
    StageOfPositions used = loaded;
    const auto load_stage = [&](int buffer) {
      load_positions_stage(shared + buffer * gemm.stage_bytes, tile, loaded, x, grad_output, p);
      loaded.advance(tile, p);
    };
    const auto multiply_stage = [&](int buffer) {
      const Element* const x_tile =
          reinterpret_cast<const Element*>(shared + buffer * gemm.stage_bytes) + x_offset;
      const Element* const y_tile = reinterpret_cast<const Element*>(
                                        shared + buffer * gemm.stage_bytes + gemm.stage_weights) +
                                    y_offset + output_shift(lowest_output_w(tile, used, p));
      const int count =
          works ? static_cast<int>(min(static_cast<Index>(rows), tile.height.end - used.h)) : 0;
#pragma unroll 1
      for (int row = share; row < count; row += grad.warps_k) {
        const Element* x_value = x_tile + row * gemm.x.row;
        const Element* y_value = y_tile + row * stride_h * y_row;
#pragma unroll 1
        for (int position = 0; position < segment; ++position) {
          Accumulator left[kTileCi];
          Accumulator right[kTileCo];
#pragma unroll
          for (int i = 0; i < kTileCi; ++i) {
            left[i] = conjugate(to_accumulator(x_value[i * x_pitch]));
          }
#pragma unroll
          for (int j = 0; j < kTileCo; ++j) right[j] = to_accumulator(y_value[j * y_pitch]);
#pragma unroll
          for (int i = 0; i < kTileCi; ++i) {
#pragma unroll
            for (int j = 0; j < kTileCo; ++j) {
              sum[i][j] = multiply_add(left[i], right[j], sum[i][j]);
            }
          }
          ++x_value;
          y_value += stride_w;
        }
      }
      used.advance(tile, p);
    };
    __syncthreads();  // the stages of the previous tile have been used
    run_pipeline(gemm.stages, static_cast<Index>(tile.end_stage - tile.first_stage), load_stage,
                 multiply_stage);

    if (!works) continue;
    const long long tap =
        (tile.kd * p.axis[1].kernel + tile.first_kh + kh) * p.axis[2].kernel + tile.first_kw + kw;
#pragma unroll
    for (int i = 0; i < kTileCi; ++i) {
#pragma unroll
      for (int j = 0; j < kTileCo; ++j) {
        const Index ci = tile.first_ci + ci_group * kTileCi + i;
        const Index co = tile.first_co + co_group * kTileCo + j;
        if (ci < p.in_channels && co < p.out_channels) {
          sums[sum_place(tile, share, tap, ci, co, p)] = sum[i][j];
        }
      }
    }
  }
}
