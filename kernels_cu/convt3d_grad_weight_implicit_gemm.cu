// Deterministic gradient of the weights on tensor cores: implicit GEMM, a sum over positions in
// fixed splits.
//
//   grad_weight[ci, co, k] = sum over n, i of x[n, ci, i] *
//                            grad_output[n, co, i*stride + k*dilation - padding]
//
//   gemm_m = input channels, gemm_n = (kh, kw) x output channels, gemm_k = positions of x. A
//   product is only wasted where a tap takes a position along H or W outside grad_output.
//
//   block  a tile of the weights (grad_weight_tile.cuh) and one split of the stages
//   warp   kWarpMTiles x kWarpNTiles tiles of 16 x 8 sums: 16 input channels x 8 output channels of
//          one tap; where there are fewer tiles than warps, warps_k warps share them and each takes
//          every warps_k-th row of a stage
//   stage  rows of x and grad_output as [channel][row][position], both loaded once for all taps of
//          the block; `stages` of them in dynamic shared memory, filled by cp.async. A fragment of
//          grad_output is loaded every stride-th element from kw*dilation on
//   sums   leave the block as [split][tap][ci][co]; sum_grad_weight.cu adds the splits
//
// Determinism: splits, and the order of stages inside one, are fixed; no atomics.
// Limits: sm_80. Real dtypes. Where grad_output does not exist zeros are multiplied:
// sum_grad_weight corrects sums that came out as NaN.
#include <grad_weight_tile.cuh>
#include <pipeline.cuh>
#include <tensor_core.cuh>

extern "C" __global__ void __launch_bounds__(kMaxThreads, 1)
    convt3d_grad_weight_implicit_gemm(const Element* __restrict__ x,
                                      const Element* __restrict__ grad_output,
                                      Accumulator* __restrict__ sums,
                                      const __grid_constant__ Params p) {
  constexpr int kParts = TensorMath::kParts;
  constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  unsigned char* const shared = dynamic_shared_memory();
  const GemmParams& gemm = p.gemm;
  const GradWeightParams& grad = p.grad_weight;

  const int stride_h = static_cast<int>(p.axis[1].stride);
  const int stride_w = static_cast<int>(p.axis[2].stride);
  const int dilation_h = static_cast<int>(p.axis[1].dilation);
  const int dilation_w = static_cast<int>(p.axis[2].dilation);
  const int rows = static_cast<int>(p.axis[1].tile);
  const int steps = static_cast<int>(gemm.segment.divisor) / TensorMath::kStepK;
  const int x_row = gemm.x.row;
  const int x_pitch = gemm.x.channel_pitch;
  const int y_row_bytes = grad.grad_output.row * kElementBytes;
  const int y_pitch = grad.grad_output.channel_pitch * kElementBytes;
  const int k_pitch = stride_w * kElementBytes;

  const int lane = static_cast<int>(threadIdx.x % 32);
  int warp_m;
  const int warp_nk = divmod(static_cast<int>(threadIdx.x / 32), gemm.warps_m, &warp_m);
  const int warp_n = warp_nk % grad.warps_n;
  const int warp_k = warp_nk / grad.warps_n;

  for (long long index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const GradWeightTile tile = grad_weight_tile(static_cast<Index>(index), p);
    const int n_tiles =
        static_cast<int>(grad.co_groups.divisor * grad.taps_w.divisor) * tile.taps_h;

    // Tiles are numbered (kh, kw, 8 channels).
    int tile_offset[kWarpNTiles];  // bytes inside the rows of grad_output
#pragma unroll
    for (int i = 0; i < kWarpNTiles; ++i) {
      const int n_tile = warp_n * kWarpNTiles + i;
      int co_group;
      int kw;
      const int kh = divmod(divmod(n_tile, grad.co_groups, &co_group), grad.taps_w, &kw);
      // Tiles past the last are multiplied like the first, and not stored.
      tile_offset[i] = n_tile < n_tiles && kw < tile.taps_w
                           ? kh * dilation_h * y_row_bytes + kw * dilation_w * kElementBytes +
                                 8 * co_group * y_pitch
                           : 0;
    }
    add_lane_of_elements(lane, k_pitch, y_pitch, tile_offset);

    Accumulator sum[kWarpMTiles][kWarpNTiles][4] = {};

    StageOfPositions loaded(tile, p);
    StageOfPositions used = loaded;
    const auto load_stage = [&](int buffer) {
      load_positions_stage(shared + buffer * gemm.stage_bytes, tile, loaded, x, grad_output, p);
      loaded.advance(tile, p);
    };
    const auto multiply_stage = [&](int buffer) {
      const Element* const x_tile =
          reinterpret_cast<const Element*>(shared + buffer * gemm.stage_bytes) +
          warp_m * kWarpMTiles * 16 * x_pitch;
      const unsigned y_tile =
          shared_address(shared + buffer * gemm.stage_bytes + gemm.stage_weights) +
          output_shift(lowest_output_w(tile, used, p)) * kElementBytes;
      const int count = static_cast<int>(min(static_cast<Index>(rows), tile.height.end - used.h));
      for (int row = warp_k; row < count; row += grad.warps_k) {
        for (int step = 0; step < steps; ++step) {
          const int position = step * TensorMath::kStepK;
          TensorMath::XFragment fragment[kWarpNTiles];
          load_elements(y_tile + row * stride_h * y_row_bytes + position * k_pitch, k_pitch,
                        TensorMath::kStepK / 2 * k_pitch, tile_offset, fragment);
#pragma unroll
          for (int m = 0; m < kWarpMTiles; ++m) {
            uint4 part[kParts];
            TensorMath::pack(
                lane,
                [&](int channel, int k) {
                  return x_tile[(16 * m + channel) * x_pitch + row * x_row + position + k];
                },
                part);
            add_products(sum[m], part, fragment);
          }
        }
      }
      used.advance(tile, p);
    };
    __syncthreads();  // the stages of the previous tile have been used
    run_pipeline(gemm.stages, static_cast<Index>(tile.end_stage - tile.first_stage), load_stage,
                 multiply_stage);

#pragma unroll
    for (int i = 0; i < kWarpNTiles; ++i) {
      const int n_tile = warp_n * kWarpNTiles + i;
      int co_group;
      int kw;
      const int kh = divmod(divmod(n_tile, grad.co_groups, &co_group), grad.taps_w, &kw);
      if (n_tile >= n_tiles || kw >= tile.taps_w) continue;
      const long long tap =
          (tile.kd * p.axis[1].kernel + tile.first_kh + kh) * p.axis[2].kernel + tile.first_kw + kw;
#pragma unroll
      for (int m = 0; m < kWarpMTiles; ++m) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const Index ci = tile.first_ci + (warp_m * kWarpMTiles + m) * 16 + lane / 4 + r / 2 * 8;
          const Index co = tile.first_co + co_group * 8 + lane % 4 * 2 + r % 2;
          if (ci < p.in_channels && co < p.out_channels) {
            sums[sum_place(tile, warp_k, tap, ci, co, p)] = sum[m][i][r];
          }
        }
      }
    }
  }
}
