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

struct Params {
  AxisParams axis[3];
  long long batch;
  long long groups;
  long long in_channels;   // per group
  long long out_channels;  // per group
  long long co_tiles;      // blocks along the output channels of a group
  long long tiles;         // blocks of work in all; a grid smaller than that loops over them
  long long has_bias;
  // Weights that a block stages in shared memory at a time.
  long long stage_channels;
  FastDivmod stage_taps;
  // Scatter: 1 if no other block adds to a block's outputs, so that it stores instead of adding.
  long long owns_output;
  // fill_bias and convert_workspace: elements of one (n, co) plane of y that a block writes.
  long long plane;
  long long plane_chunk;
};

#ifdef CONVT3D_PARAMS_SIZE
static_assert(sizeof(Params) == CONVT3D_PARAMS_SIZE,
              "convt3d_params.cuh and cupy_convt3d/_params.py differ");
#endif
