// What a block of the gradient of the weights computes: weights of a tile, from a share of the
// positions; the order of its stages, and their loads.
//
// A stage is a few rows of x, in one plane and one segment along W, with the rows of grad_output
// that they meet by the block's taps: one kd, a slice of kh and a slice of kw.
#pragma once
#include <convt3d_params.cuh>
#include <element.cuh>
#include <tile_load.cuh>

/// Coordinates [begin, end) of x along one axis.
struct Range {
  Index begin;
  Index end;
};

/// Returns the inputs that taps [first, end) take to an output for at least one of them.
__device__ inline Range inputs_in_reach(const AxisParams& axis, Index first, Index end) {
  const Index padding = static_cast<Index>(axis.padding);
  const Index dilation = static_cast<Index>(axis.dilation);
  Index remainder;
  Range range{0, 0};
  // Input i and tap k meet output i*stride + k*dilation - padding.
  const Index below = padding - (end - 1) * dilation;
  if (below > 0) {
    range.begin =
        divmod(below + static_cast<Index>(axis.stride) - 1, axis.stride_divmod, &remainder);
  }
  const Index highest = static_cast<Index>(axis.output) - 1 + padding - first * dilation;
  if (highest >= 0) {
    range.end =
        min(static_cast<Index>(axis.input), 1 + divmod(highest, axis.stride_divmod, &remainder));
  }
  if (range.end < range.begin) range.end = range.begin;
  return range;
}

/// A block's weights and its share of the stages. All threads work it out.
struct GradWeightTile {
  Index group;
  Index first_ci;  // within the group
  Index first_co;
  Index kd;
  Index first_kh;
  Index first_kw;
  int taps_h;
  int taps_w;
  Range depth;   // planes of x that meet one of grad_output
  Range height;  // rows, likewise
  long long split;
  long long first_stage;
  long long end_stage;
};

/// Channels vary fastest, then taps: blocks that read the same positions are neighbours.
__device__ inline GradWeightTile grad_weight_tile(Index index, const Params& p) {
  const GradWeightParams& grad = p.grad_weight;
  GradWeightTile tile;
  Index co_tile;
  Index ci_tile;
  Index h_slice;
  Index w_slice;
  Index rest = divmod(index, p.gemm.co_tiles, &co_tile);
  rest = divmod(rest, grad.ci_tiles, &ci_tile);
  rest = divmod(rest, grad.w_slices, &w_slice);
  rest = divmod(rest, grad.h_slices, &h_slice);
  rest = divmod(rest, grad.kernel_d, &tile.kd);
  tile.split = divmod(rest, p.gemm.groups, &tile.group);
  tile.first_co = co_tile * static_cast<Index>(p.gemm.co_tile.divisor);
  tile.first_ci = ci_tile * grad.ci_tile;
  tile.first_kh = h_slice * static_cast<Index>(p.axis[1].tap_slice);
  tile.first_kw = w_slice * static_cast<Index>(p.axis[2].tap_slice);
  tile.taps_h = static_cast<int>(
      min(p.axis[1].tap_slice, p.axis[1].kernel - static_cast<long long>(tile.first_kh)));
  tile.taps_w = static_cast<int>(
      min(p.axis[2].tap_slice, p.axis[2].kernel - static_cast<long long>(tile.first_kw)));
  tile.depth = inputs_in_reach(p.axis[0], tile.kd, tile.kd + 1);
  tile.height = inputs_in_reach(p.axis[1], tile.first_kh, tile.first_kh + tile.taps_h);

  const long long boxes =
      (tile.height.end - tile.height.begin + p.axis[1].tile - 1) / p.axis[1].tile;
  const long long stages =
      p.batch * (tile.depth.end - tile.depth.begin) * boxes * p.gemm.segments.divisor;
  // In equal shares, of which the first few have one stage more.
  const long long least = stages / grad.splits;
  const long long longer = stages % grad.splits;
  tile.first_stage = tile.split * least + min(tile.split, longer);
  tile.end_stage = tile.first_stage + least + (tile.split < longer ? 1 : 0);
  return tile;
}

/// The positions of one stage; segments along W vary fastest.
struct StageOfPositions {
  Index n;
  Index d;
  Index h;  // first row
  Index segment;

  __device__ StageOfPositions(const GradWeightTile& tile, const Params& p) {
    const long long rows = p.axis[1].tile;
    const long long boxes = max(1LL, (tile.height.end - tile.height.begin + rows - 1) / rows);
    long long rest = tile.first_stage;
    segment = static_cast<Index>(rest % p.gemm.segments.divisor);
    rest /= p.gemm.segments.divisor;
    h = tile.height.begin + static_cast<Index>(rest % boxes * rows);
    rest /= boxes;
    const long long planes = max(1LL, static_cast<long long>(tile.depth.end - tile.depth.begin));
    d = tile.depth.begin + static_cast<Index>(rest % planes);
    n = static_cast<Index>(rest / planes);
  }

  __device__ void advance(const GradWeightTile& tile, const Params& p) {
    if (++segment < static_cast<Index>(p.gemm.segments.divisor)) return;
    segment = 0;
    h += static_cast<Index>(p.axis[1].tile);
    if (h < tile.height.end) return;
    h = tile.height.begin;
    if (++d < tile.depth.end) return;
    d = tile.depth.begin;
    ++n;
  }
};

/// Returns the coordinate of grad_output along W that the first position of a stage meets at the
/// block's first tap.
__device__ inline Index lowest_output_w(const GradWeightTile& tile, const StageOfPositions& at,
                                        const Params& p) {
  return at.segment * static_cast<Index>(p.gemm.segment.divisor * p.axis[2].stride) +
         tile.first_kw * static_cast<Index>(p.axis[2].dilation) -
         static_cast<Index>(p.axis[2].padding);
}

/// Returns by how many elements that coordinate lies above the start of the rows in shared memory,
/// which begin at a multiple of 8 for wide copies.
__device__ inline int output_shift(Index lowest) { return static_cast<int>(lowest & 7); }

/// Starts the copies of a stage: channels of x as [channel][row][position], then at
/// gemm.stage_weights those of grad_output likewise.
__device__ inline void load_positions_stage(unsigned char* memory, const GradWeightTile& tile,
                                            const StageOfPositions& at,
                                            const Element* __restrict__ x,
                                            const Element* __restrict__ grad_output,
                                            const Params& p) {
  const GemmParams& gemm = p.gemm;
  const long long image = at.n * p.groups + tile.group;
  const int rows = static_cast<int>(p.axis[1].tile);
  const long long x_volume = p.axis[0].input * p.axis[1].input * p.axis[2].input;
  const long long y_volume = p.axis[0].output * p.axis[1].output * p.axis[2].output;
  const Box x_box{
      tile.first_ci, {at.d, at.h, at.segment * static_cast<Index>(gemm.segment.divisor)}, rows};
  load_box(shared_address(memory), x + image * p.in_channels * x_volume, gemm.x, x_box,
           unit_of_box(static_cast<int>(threadIdx.x), gemm.x), p.grad_weight.ci_tile);
  const Index lowest_w = lowest_output_w(tile, at, p);
  const AxisParams& depth = p.axis[0];
  const AxisParams& height = p.axis[1];
  const Box y_box{
      tile.first_co,
      {static_cast<Index>(at.d * depth.stride + tile.kd * depth.dilation - depth.padding),
       static_cast<Index>(at.h * height.stride + tile.first_kh * height.dilation - height.padding),
       lowest_w - output_shift(lowest_w)},
      static_cast<int>((rows - 1) * height.stride + (tile.taps_h - 1) * height.dilation + 1)};
  load_box(shared_address(memory + gemm.stage_weights),
           grad_output + image * p.out_channels * y_volume, p.grad_weight.grad_output, y_box,
           unit_of_box(static_cast<int>(threadIdx.x), p.grad_weight.grad_output),
           static_cast<int>(gemm.co_tile.divisor));
}

/// Returns where a block, and there one of warps_k shares of its rows, leaves its sum of a weight:
/// sums are [split][share][tap][ci][co], ci of all groups.
///
/// tap  of the kernel, counted along width first
__device__ inline long long sum_place(const GradWeightTile& tile, int share, long long tap,
                                      long long ci, long long co, const Params& p) {
  const long long block = tile.split * p.grad_weight.warps_k + share;
  return ((block * p.kernel_volume + tap) * p.groups * p.in_channels + tile.group * p.in_channels +
          ci) *
             p.out_channels +
         co;
}
