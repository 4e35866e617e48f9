// The one struct that Python fills (cupy_convt3d/_params.py mirrors it field by field).
//
// Extents, coordinates and steps count elements. Spatial axes are ordered depth, height, width.
#pragma once
#include <fast_divmod.cuh>

/// One spatial axis.
struct AxisParams {
  long long input;
  long long kernel;
  long long output;
  long long stride;
  long long padding;
  long long dilation;
  // Phases (residue_class.cuh).
  long long gcd;         // of stride and dilation
  long long tap_step;    // stride / gcd: from one tap of a phase to its next
  long long input_step;  // dilation / gcd: how far that moves the input coordinate down
  long long inverse;     // of dilation / gcd, modulo tap_step
  long long phases;      // min(stride, output)
  // Of the correlations that gradients are; 0 and 1 otherwise.
  long long origin;        // added to every input coordinate
  long long input_stride;  // inputs from one output of a phase to the next
  FastDivmod stride_divmod;
  FastDivmod gcd_divmod;
  FastDivmod tap_step_divmod;
  FastDivmod input_step_divmod;
  FastDivmod positions;  // of a phase: ceil(output / stride)
  // Scatter tiles.
  long long tile;        // inputs of a block
  long long tiles;       // blocks along the input
  long long tap_slice;   // taps of a block
  long long tap_slices;  // blocks along the kernel
  long long reach;       // outputs that a block's products can reach, holes included
  FastDivmod tile_divmod;
  FastDivmod box;  // outputs that a block visits when it writes its sums
};

/// How a box of some channels of a tensor is copied to shared memory (tile_load.cuh).
struct BoxCopy {
  long long extent[3];    // of the tensor
  long long channels;     // of the tensor, per group
  FastDivmod rows_h;      // rows of the box in a plane
  FastDivmod row_copies;  // asynchronous copies of a row
  FastDivmod copies;      // asynchronous copies of a channel
  long long source_step;  // elements of the tensor from one channel of a thread to its next
  int target_step;        // the same in the box
  int copy_elements;
  int copy_channels;  // that the threads of a block copy at a time
  int row;            // elements of a row of the box
  int channel_pitch;  // elements from one channel of the box to the next
  int plane_step;     // planes of the tensor from one plane of the box to the next
};

/// The tiles of the tensor-core kernels. For the implicit GEMM AxisParams::tile holds output rows
/// of a phase along depth and height, and inputs along width; tap_slice taps along width are
/// multiplied at a time.
struct GemmParams {
  FastDivmod co_tile;       // output channels of a block
  int m_tiles;              // of 16 rows (tap along W, output channel), in a block
  FastDivmod warps_m;       // of a block, along m
  FastDivmod row_tiles;     // of 8 inputs, in a row
  FastDivmod tile_h;        // output rows of a block along height
  FastDivmod segment;       // outputs of a block along width
  int stage_steps;          // k steps of a stage
  FastDivmod stage_taps_h;  // taps along height of a stage
  int stages_c;             // stages along the channels
  int stages;               // buffers of the pipeline, 2 to 4
  int stage_bytes;
  int stage_weights;        // bytes from a stage's x tile to its weights
  BoxCopy x;                // the inputs of a stage
  FastDivmod pass_rows;     // output rows that are summed at a time
  FastDivmod row_places;    // for the outputs of a row, and what lies before them in their sector
  int sector_mask;          // elements of a sector of y, less 1, if rows begin with a whole one
  int log2_interleave;      // of lanes among the outputs of a row (row_epilogue.cuh)
  int product_pitch;        // elements from the products of one input to those of the next
  FastDivmod sum_channels;  // that a thread of the epilogue sums for one output
  int output_taps;          // bytes from the start of shared memory to the taps of the outputs
  int row_outputs;          // the same to the outputs of a pass (RowOutputs)
  int sums;                 // the same to the sums of tap slices
  int block_tile;           // the same to the description of what the block computes
  // Depth to space.
  int part_m_tiles;   // m tiles of a block
  FastDivmod taps_h;  // of the kernel along height
  // Blocks along each extent, those along depth and height in pairs.
  FastDivmod co_tiles;
  FastDivmod segments;
  FastDivmod phases[2];
  FastDivmod boxes[2];
  FastDivmod groups;
};

/// The tiles of the gradient of the weights (grad_weight_tile.cuh). GemmParams has the pipeline,
/// the boxes of x and the warps.
struct GradWeightParams {
  BoxCopy grad_output;
  long long splits;  // of the sum over positions
  FastDivmod kernel_d;
  FastDivmod h_slices;  // of the taps along height; AxisParams::tap_slice taps in each
  FastDivmod w_slices;  // of the taps along width
  FastDivmod ci_tiles;
  FastDivmod taps_w;  // of a slice along width
  FastDivmod
      co_groups;     // of the output channels of a block, that a warp or a thread takes together
  FastDivmod items;  // direct: pieces of the block's weights, one for each thread
  int ci_tile;       // input channels of a block
  int warps_n;
  int warps_k;  // or threads, that share the rows of a stage
};

/// The columns and stages of the gather. It calls its axes planes, rows and width: Params::axis 0
/// and 1 are depth and height or, where columns are better laid along depth, height and depth.
struct GatherParams {
  long long columns;  // of a phase of the output
  FastDivmod row;     // columns of a row
  FastDivmod batch;
  FastDivmod row_spacing;   // from one row of a column to its next
  long long input_spacing;  // the same in rows of x
  FastDivmod width_phases;  // along width that a block owns: one or all
  long long unit_taps;      // taps along the rows of a unit
  long long stage_units;    // units of a stage
  long long x_step[2];      // elements from one plane and one row to the next
  long long y_step[2];
  long long weight_step[2];
  long long x_volume;
  long long y_volume;
};

/// The tiles of the sub-pixel kernel: an output stride*q + phase meets the inputs q + first_offset,
/// ..., and the first of them by the tap first_tap + phase, each further one by `stride` less.
/// GemmParams has the pipeline, the boxes of x and the warps; AxisParams::tile holds positions q.
struct SubpixelParams {
  long long first_offset[3];
  int first_tap[3];
  int offsets[3];        // that any phase meets; along W whole steps
  int step_offsets;      // offsets along W of one k step: 1 or 2
  int step_channels;     // input channels of one k step
  int co_blocks;         // of 8 output channels, of a block
  FastDivmod row_warps;  // along a row of positions
  FastDivmod phases;     // along depth and height
  FastDivmod phases_h;
};

struct Params {
  AxisParams axis[3];
  long long batch;
  long long groups;
  long long in_channels;   // per group
  long long out_channels;  // per group
  long long co_tiles;      // blocks along the output channels of a group
  long long tiles;         // blocks of work in all; a grid smaller than that loops over them
  long long has_bias;
  // Weights (weight_layout.cuh).
  long long kernel_volume;
  long long weight_in_step;   // elements from one input channel to the next
  long long weight_out_step;  // from one output channel to the next
  long long is_gradient;      // taps are counted from the last one, and weights conjugated
  // Weights that a block stages in shared memory at a time.
  long long stage_channels;
  FastDivmod stage_taps;
  // Scatter: 1 if no other block adds to a block's outputs, so that it stores instead of adding.
  long long owns_output;
  // fill_bias and finish_sums: elements of one (n, co) plane of y that a block writes.
  long long plane;
  long long plane_chunk;
  double negative_slope;  // of leaky_relu (epilogue.cuh)
  GemmParams gemm;
  GatherParams gather;
  GradWeightParams grad_weight;
  SubpixelParams subpixel;
};

#ifdef CONVT3D_PARAMS_SIZE
static_assert(sizeof(Params) == CONVT3D_PARAMS_SIZE,
              "convt3d_params.cuh and cupy_convt3d/_params.py differ");
#endif
