// Deterministic transposed convolution on FMA units: any dtype, any sizes.
//
//   y[n, co, o] = bias[co] + sum over taps k, channels ci of x[n, ci, i] * w[ci, co, k],
//                 o + padding = i*stride + k*dilation on each axis
//
// The spatial axes are called planes, rows and width. Python says which of depth and height are
// the rows (axis 1 of Params here): a thread owns outputs of several rows of one phase
// (residue_class.cuh).
//
//   column one coordinate along width of kTilePositions rows, row_spacing apart: the rows that one
//          tap after the other along the rows meets are those of its neighbour, shifted by one
//   thread kTileCo output channels x one column
//   block  blockDim.x columns, consecutive along width, so that a warp reads and writes consecutive
//          elements of a row. They belong to one phase along planes and rows; along width to one
//          phase or, where writing every stride-th element would cost more than idle lanes, to all
//   unit   the taps that share their tap along planes and along width: unit_taps or fewer along the
//          rows
//   stage  weights of stage_units units x stage_channels channels, converted to the accumulator
//          type, in shared memory as [channel][unit][tap][phase along width][co]: the block loads
//          them, consecutive threads consecutive taps
//   x      straight from global memory through L1 into a window of kTilePositions registers, which
//          moves by one row for each tap: one load for kTilePositions * kTileCo multiply-adds.
//          Columns at a border test each row; lanes without the unit's input along planes or width
//          are masked off
//
// Determinism: a thread owns its outputs and sums them in a fixed order (chunks of stage_channels
// channels, then units, then channels of the chunk, then taps along the rows), which depends on
// neither grid nor batch nor tile, so results are bit-identical from run to run. A product is made
// only if its input exists: padding contributes nothing, not even 0 * inf.
// The gradient of the input is computed by this kernel too (residue_class.cuh).
// Limits: none beyond 64-bit indices. Static shared memory, no workspace.
// Source of the phases: kernels_cu/residue_class.cuh.
#include <epilogue.cuh>
#include <residue_class.cuh>
#include <weight_layout.cuh>

/// (tap, channel) pairs of a stage, taps among them, and phases along width of a block. Python
/// keeps to all of them.
constexpr int kStagePairs = 256;
constexpr int kMaxStageTaps = 64;
constexpr int kMaxWidthPhases = 8;

/// Blocks of a multiprocessor: two where sums, window and indices fit 128 registers.
constexpr int kMinBlocks =
    sizeof(Index) == sizeof(int) && (sizeof(Accumulator) == sizeof(float) ||
                                     sizeof(Accumulator) * kTilePositions * kTileCo <= 128)
        ? 2
        : 1;

/// The weights of one (tap, channel) pair for a thread's output channels, loaded as vectors.
struct alignas(sizeof(Accumulator) * kTileCo < 16 ? sizeof(Accumulator) * kTileCo : 16)
    WeightFragment {
  Accumulator co[kTileCo];
};

/// What a block works on.
struct Tile {
  Index first_co;
  Index group;
  Index column;      // its first column, in blocks
  Index residue[3];  // its phases; along width the first one
  Phase plane;
  Phase row;
  Phase width[kMaxWidthPhases];
  Index width_taps;  // of the phase along width that has most
};

/// Decodes a tile. Threads 0, 1, 2, ... of the block together find its phases.
///
/// Output channels vary fastest, then phases: neighbouring blocks read the same inputs, and the
/// phases along rows and width fill the same part of y.
__device__ inline void decode_tile(Index index, int thread, const Params& p, Tile& tile) {
  const Index width_phases = static_cast<Index>(p.gather.width_phases.divisor);
  if (thread >= 2 + width_phases) return;
  const Index co_tiles = static_cast<Index>(p.co_tiles);
  const Index groups = static_cast<Index>(p.groups);
  const Index first_co = index % co_tiles * kTileCo;
  index /= co_tiles;
  const Index group = index % groups;
  index /= groups;
  Index residue[3] = {0, 0, 0};
  if (width_phases == 1) {
    residue[2] = index % static_cast<Index>(p.axis[2].phases);
    index /= static_cast<Index>(p.axis[2].phases);
  }
#pragma unroll
  for (int a = 1; a >= 0; --a) {
    residue[a] = index % static_cast<Index>(p.axis[a].phases);
    index /= static_cast<Index>(p.axis[a].phases);
  }
  if (thread == 0) {
    tile.first_co = first_co;
    tile.group = group;
    tile.column = index;
#pragma unroll
    for (int a = 0; a < 3; ++a) tile.residue[a] = residue[a];
    tile.plane = phase_of_axis(p.axis[0], residue[0]);
  } else if (thread == 1) {
    tile.row = phase_of_axis(p.axis[1], residue[1]);
  } else {
    const Phase width = phase_of_axis(p.axis[2], residue[2] + (thread - 2));
    tile.width[thread - 2] = width;
    const Index tap_step = static_cast<Index>(p.axis[2].tap_step);
    const Index most_taps = (static_cast<Index>(p.axis[2].kernel) + tap_step - 1) / tap_step;
    if (thread == 2) tile.width_taps = width_phases == 1 ? width.taps : most_taps;
  }
}

/// A thread's column: positions of the phases of its block.
struct Column {
  int rows;         // outputs that exist, from the first row on; 0 without an output
  int width_phase;  // of the block's phases along width
  Index n;
  Index m[3];  // position in the phase; along rows that of the first row
};

/// Returns the coordinate of a column's first output.
__device__ inline Index output_of(const Tile& tile, const Column& column, const Params& p, int a) {
  return tile.residue[a] + (a == 2 ? column.width_phase : 0) +
         column.m[a] * static_cast<Index>(p.axis[a].stride);
}

__device__ inline Column decode_column(const Tile& tile, const Params& p) {
  Column column{0, 0, 0, {0, 0, 0}};
  // Counted in 64 bits: the last block may reach past 2^31.
  const long long flat = static_cast<long long>(tile.column) * blockDim.x + threadIdx.x;
  if (flat >= p.gather.columns) return column;
  Index phase;
  Index first;
  Index rest = divmod(static_cast<Index>(flat), p.gather.row, &column.m[2]);
  rest = divmod(rest, p.axis[0].positions, &column.m[0]);
  const Index row_tile = divmod(rest, p.gather.batch, &column.n);
  column.m[2] = divmod(column.m[2], p.gather.width_phases, &phase);
  column.width_phase = static_cast<int>(phase);
  const Index spacing = static_cast<Index>(p.gather.row_spacing.divisor);
  column.m[1] = divmod(row_tile, p.gather.row_spacing, &first) * kTilePositions * spacing + first;

  // The last position of a phase can lie outside when the output is no multiple of the stride.
  if (output_of(tile, column, p, 0) >= p.axis[0].output) return column;
  if (output_of(tile, column, p, 2) >= p.axis[2].output) return column;
  const Index row_step = spacing * static_cast<Index>(p.axis[1].stride);
#pragma unroll
  for (int i = 0; i < kTilePositions; ++i) {
    if (output_of(tile, column, p, 1) + i * row_step < p.axis[1].output) column.rows = i + 1;
  }
  return column;
}

/// What tap 0 of each axis meets for the first row of a column. Where a column has no outputs,
/// `coordinate[0]` lies outside.
struct Input {
  Index coordinate[3];
  Index x;  // offset of channel 0 of the group
};

__device__ inline Input input_of(const Tile& tile, const Column& column, const Params& p) {
  if (column.rows == 0) return {{-1, 0, 0}, 0};
  const Index image = column.n * static_cast<Index>(p.groups) + tile.group;
  const Index origin[3] = {tile.plane.origin, tile.row.origin,
                           tile.width[column.width_phase].origin};
  Input input{{0, 0, 0}, image * static_cast<Index>(p.in_channels * p.gather.x_volume)};
#pragma unroll
  for (int a = 0; a < 3; ++a) {
    input.coordinate[a] = origin[a] + column.m[a] * static_cast<Index>(p.axis[a].input_stride);
  }
  input.x += input.coordinate[0] * static_cast<Index>(p.gather.x_step[0]) +
             input.coordinate[1] * static_cast<Index>(p.gather.x_step[1]) + input.coordinate[2];
  return input;
}

/// One unit of a stage.
struct Unit {
  Index width_tap;  // its tap along width, counted inside a phase
  Index step[3];    // coordinates that its first tap subtracts from the input's
  Index x;          // offset that they make
  int taps;         // along the rows
};

/// Describes tap `tap` of a stage, counted as (unit, tap along the rows, phase along width) from
/// the block's first unit on: `offset` says where its weights are inside a (ci, co) kernel, -1 if
/// there is no such tap.
__device__ inline Unit describe_tap(Index tap, const Tile& tile, const Params& p, Index& offset) {
  Index phase;
  Index rest = divmod(tap, p.gather.width_phases, &phase);
  const Index unit_taps = static_cast<Index>(p.gather.unit_taps);
  const Index row_units = (tile.row.taps + unit_taps - 1) / unit_taps;
  const Index row_tap = rest % unit_taps;
  rest /= unit_taps;
  const Index unit_row = rest % row_units * unit_taps;
  rest /= row_units;
  const Index j[3] = {rest / tile.width_taps, unit_row + row_tap, rest % tile.width_taps};

  const Phase* const phases[3] = {&tile.plane, &tile.row, &tile.width[phase]};
  bool exists = true;
  Index k[3];
#pragma unroll
  for (int a = 0; a < 3; ++a) {
    exists &= j[a] < phases[a]->taps;
    k[a] = phases[a]->first_tap + j[a] * static_cast<Index>(p.axis[a].tap_step);
  }
  offset = exists ? weight_tap(p, k[0] * static_cast<Index>(p.gather.weight_step[0]) +
                                      k[1] * static_cast<Index>(p.gather.weight_step[1]) + k[2])
                  : -1;
  Unit unit{j[2],
            {j[0] * static_cast<Index>(p.axis[0].input_step),
             unit_row * static_cast<Index>(p.axis[1].input_step),
             j[2] * static_cast<Index>(p.axis[2].input_step)},
            0,
            static_cast<int>(min(unit_taps, tile.row.taps - unit_row))};
  unit.x = unit.step[0] * static_cast<Index>(p.gather.x_step[0]) +
           unit.step[1] * static_cast<Index>(p.gather.x_step[1]) + unit.step[2];
  return unit;
}

/// Whether an input has this coordinate.
__device__ inline bool exists(Index coordinate, const AxisParams& axis) {
  return static_cast<UnsignedIndex>(coordinate) < static_cast<UnsignedIndex>(axis.input);
}

/// Returns which of the rows that a unit meets have an input: bit 0 is the last one, at
/// `coordinate`, and the others follow, input_spacing apart.
__device__ inline unsigned existing_rows(Index coordinate, int taps, const Params& p) {
  unsigned rows = 0;
  for (int r = 0; r < kTilePositions + taps - 1; ++r) {
    if (exists(coordinate, p.axis[1])) rows |= 1u << r;
    coordinate -= static_cast<Index>(p.gather.input_spacing);
  }
  return rows;
}

/// Adds the products of one unit to the sums of a thread.
///
/// x           the input of the last row of the column at the unit's first tap
/// rows        existing_rows
/// kEveryRow   all of them exist, so nothing is tested in the loop
template <bool kEveryRow>
__device__ inline void add_unit(const Element* __restrict__ x, unsigned rows, int channels,
                                int taps, const WeightFragment* weights, const Params& p,
                                Accumulator (&sum)[kTilePositions][kTileCo]) {
  const long long row_bytes =
      p.gather.input_spacing * p.gather.x_step[1] * static_cast<long long>(sizeof(Element));
  const int tap_weights = static_cast<int>(p.gather.width_phases.divisor);
#pragma unroll 1
  for (int channel = 0; channel < channels; ++channel) {
    const WeightFragment* tap_weight = weights;
    const WeightFragment* const end = weights + taps * tap_weights;
    const char* source = reinterpret_cast<const char*>(x);
    Accumulator value[kTilePositions]{};
    const auto load_row = [&](int slot, bool inside) {
      if (inside) value[slot] = to_accumulator(*reinterpret_cast<const Element*>(source));
      source -= row_bytes;
    };
    // Bit kTilePositions - 1 - i is row i of the column, at the present tap.
    unsigned window = rows;
    const auto inside = [&](int i) {
      return kEveryRow || (window & (1u << (kTilePositions - 1 - i))) != 0;
    };
    const auto add_taps = [&] {
      while (tap_weight != end) {
        // Unrolled, because the window turns inside its registers: after kTilePositions taps it is
        // where it began.
#pragma unroll
        for (int turn = 0; turn < kTilePositions; ++turn) {
          const WeightFragment weight = *tap_weight;
          tap_weight += tap_weights;
#pragma unroll
          for (int i = 0; i < kTilePositions; ++i) {
            if (!inside(i)) continue;
            const int slot = (i + kTilePositions - turn) % kTilePositions;
#pragma unroll
            for (int co = 0; co < kTileCo; ++co) {
              sum[i][co] = multiply_add(value[slot], weight.co[co], sum[i][co]);
            }
          }
          if (tap_weight == end) return;
          // The last row of the column leaves its register to the row before the first.
          window >>= 1;
          load_row(kTilePositions - 1 - turn, inside(0));
        }
      }
    };
#pragma unroll
    for (int i = kTilePositions - 1; i >= 0; --i) load_row(i, inside(i));
    add_taps();
    x += p.gather.x_volume;
    weights += static_cast<int>(p.stage_taps.divisor);
  }
}

/// Stores the outputs of a thread. Its column is decoded again: the registers that would hold it
/// are worth more in the main loop.
__device__ inline void store_sums(const Accumulator (&sum)[kTilePositions][kTileCo],
                                  const Tile& tile, const Element* __restrict__ bias,
                                  Element* __restrict__ y, const Params& p) {
  const Column column = decode_column(tile, p);
  if (column.rows == 0) return;
  const Index out_channels = static_cast<Index>(p.out_channels);
  const Index y_volume = static_cast<Index>(p.gather.y_volume);
  const long long row_step = p.gather.row_spacing.divisor * p.axis[1].stride * p.gather.y_step[1];
  const Index group_co = tile.group * out_channels + tile.first_co;
  Element* target = y +
                    (column.n * static_cast<Index>(p.groups) * out_channels + group_co) * y_volume +
                    output_of(tile, column, p, 0) * static_cast<Index>(p.gather.y_step[0]) +
                    output_of(tile, column, p, 1) * static_cast<Index>(p.gather.y_step[1]) +
                    output_of(tile, column, p, 2);
#pragma unroll
  for (int co = 0; co < kTileCo; ++co) {
    if (tile.first_co + co >= out_channels) break;
    Accumulator offset{};
    if (p.has_bias) offset = to_accumulator(bias[group_co + co]);
    Element* row = target;
#pragma unroll
    for (int i = 0; i < kTilePositions; ++i) {
      if (i < column.rows) store(row, finish(sum[i][co], offset, p));
      row += row_step;
    }
    target += y_volume;
  }
}

extern "C" __global__ void __launch_bounds__(kMaxThreads, kMinBlocks)
    convt3d_gather(const Element* __restrict__ x, const Element* __restrict__ weight,
                   const Element* __restrict__ bias, Element* __restrict__ y,
                   const __grid_constant__ Params p) {
  __shared__ WeightFragment stage_weight[kStagePairs];
  __shared__ Index stage_offset[kMaxStageTaps];
  __shared__ Unit stage_unit[kMaxStageTaps];
  __shared__ Tile tile;

  const Index in_channels = static_cast<Index>(p.in_channels);
  const Index out_channels = static_cast<Index>(p.out_channels);
  const int stage_taps = static_cast<int>(p.stage_taps.divisor);
  const Index stage_channels = static_cast<Index>(p.stage_channels);
  const Index stage_units = static_cast<Index>(p.gather.stage_units);
  const int unit_weights = static_cast<int>(p.gather.unit_taps * p.gather.width_phases.divisor);
  const Index spacing = static_cast<Index>(p.gather.input_spacing);

  for (long long index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    __syncthreads();  // the last tile is done
    decode_tile(static_cast<Index>(index), static_cast<int>(threadIdx.x), p, tile);
    __syncthreads();  // the tile is known
    Accumulator sum[kTilePositions][kTileCo];
#pragma unroll
    for (int i = 0; i < kTilePositions; ++i) {
#pragma unroll
      for (int co = 0; co < kTileCo; ++co) sum[i][co] = EmptySum<Accumulator>::value();
    }

    const Column column = decode_column(tile, p);
    const Input input = input_of(tile, column, p);
    const Index unit_taps = static_cast<Index>(p.gather.unit_taps);
    const Index units =
        tile.plane.taps * tile.width_taps * ((tile.row.taps + unit_taps - 1) / unit_taps);
#pragma unroll 1
    for (Index first_ci = 0; first_ci < in_channels; first_ci += stage_channels) {
      const int channels = static_cast<int>(min(stage_channels, in_channels - first_ci));
#pragma unroll 1
      for (Index first_unit = 0; first_unit < units; first_unit += stage_units) {
        __syncthreads();  // the previous stage has been used
        for (int t = threadIdx.x; t < stage_taps; t += blockDim.x) {
          const Unit unit = describe_tap(first_unit * unit_weights + t, tile, p, stage_offset[t]);
          if (t % unit_weights == 0) stage_unit[t / unit_weights] = unit;
        }
        __syncthreads();  // the taps of the stage are known
#pragma unroll 1
        for (int e = threadIdx.x; e < stage_taps * channels * kTileCo; e += blockDim.x) {
          Index t;
          const Index pair = divmod(static_cast<Index>(e), p.stage_taps, &t);
          const int co = static_cast<int>(pair % kTileCo);
          const Index channel = pair / kTileCo;
          // Channels past the last are computed from zeros and not stored.
          Accumulator value{};
          if (stage_offset[t] >= 0 && tile.first_co + co < out_channels) {
            value = weight_factor(
                p, weight[weight_channels(p, tile.group, first_ci + channel, tile.first_co + co) +
                          stage_offset[t]]);
          }
          stage_weight[channel * stage_taps + t].co[co] = value;
        }
        __syncthreads();  // the stage is complete

        const int count = static_cast<int>(min(stage_units, units - first_unit));
#pragma unroll 1
        for (int u = 0; u < count; ++u) {
          const Unit& unit = stage_unit[u];
          const bool inside = unit.width_tap < tile.width[column.width_phase].taps &&
                              exists(input.coordinate[0] - unit.step[0], p.axis[0]) &&
                              exists(input.coordinate[2] - unit.step[2], p.axis[2]);
          // Coordinates of the last and the first row that the unit meets.
          const Index last = input.coordinate[1] - unit.step[1] + (kTilePositions - 1) * spacing;
          const Index first = last - (kTilePositions + unit.taps - 2) * spacing;
          // Decided for the whole warp: lanes that went different ways would take turns. The block
          // is made of whole warps, and all of them run this loop.
          const bool every_row =
              __all_sync(0xffffffffu, !inside || (first >= 0 && last < p.axis[1].input));
          if (!inside) continue;
          const Element* const source = x + first_ci * p.gather.x_volume +
                                        (kTilePositions - 1) * spacing * p.gather.x_step[1] +
                                        (input.x - unit.x);
          const WeightFragment* weights = stage_weight + u * unit_weights + column.width_phase;
          if (every_row) {
            add_unit<true>(source, 0, channels, unit.taps, weights, p, sum);
          } else {
            add_unit<false>(source, existing_rows(last, unit.taps, p), channels, unit.taps, weights,
                            p, sum);
          }
        }
      }
    }
    store_sums(sum, tile, bias, y, p);
  }
}
