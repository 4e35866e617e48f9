// Loads of one stage of the implicit GEMM from global to shared memory, by the whole block.
#pragma once
#include <convt3d_params.cuh>
#include <element.cuh>
#include <ptx.cuh>

/// The inputs of a stage: a box of planes, rows and positions of some channels of one group.
struct XStage {
  Index channel;   // first, within the group
  Index first[3];  // coordinates of the box; may lie outside the input
  int rows_h;      // rows that are needed of each plane
};

/// Copies one unit of kBytes of every `together`-th channel, from `channel` up; zeros if not
/// `inside`, and past the `existing` channels.
template <int kBytes>
__device__ inline void copy_channels_of(Element* target, const Element* source, bool inside,
                                        int channel, int existing, int channels, int together,
                                        Index source_step, int target_step) {
  if constexpr (kBytes >= 4) {
    unsigned address = shared_address(target);
    const unsigned address_step = target_step * static_cast<unsigned>(sizeof(Element));
    const int bytes = inside ? kBytes : 0;
#pragma unroll 1
    for (; channel < existing; channel += together) {
      copy_async<kBytes>(address, source, bytes);
      source += source_step;
      address += address_step;
    }
#pragma unroll 1
    for (; channel < channels; channel += together) {
      copy_async<kBytes>(address, source, 0);
      address += address_step;
    }
  } else {
#pragma unroll 4
    for (; channel < channels; channel += together) {
      Element value{};  // cp.async has no such size
      if (inside && channel < existing) value = *source;
      *target = value;
      source += source_step;
      target += target_step;
    }
  }
}

/// The same for units of some elements, which divide 16 bytes.
__device__ inline void copy_channels(Element* target, const Element* source, bool inside,
                                     int channel, int existing, int channels, int together,
                                     Index source_step, int target_step, int unit) {
  const int bytes = unit * static_cast<int>(sizeof(Element));
  if (bytes == 16) {
    copy_channels_of<16>(target, source, inside, channel, existing, channels, together, source_step,
                         target_step);
  } else if (bytes == 8) {
    copy_channels_of<8>(target, source, inside, channel, existing, channels, together, source_step,
                        target_step);
  } else if (bytes == 4) {
    copy_channels_of<4>(target, source, inside, channel, existing, channels, together, source_step,
                        target_step);
  } else {
    copy_channels_of<2>(target, source, inside, channel, existing, channels, together, source_step,
                        target_step);
  }
}

/// Loads the x tile of a stage as [channel][plane][row][position], zeros outside the input.
///
/// A thread copies the same place of every channel that it takes, so that it computes one address;
/// consecutive threads take consecutive units of a row.
///
/// x        channel 0 of the sample and group
/// channels of the stage
__device__ inline void load_x(Element* tile, const Element* __restrict__ x, const Params& p,
                              const XStage& stage, int channels) {
  const GemmParams& gemm = p.gemm;
  const int copies = static_cast<int>(gemm.copies.divisor);
  const int unit = gemm.copy_elements;
  const int pitch = gemm.channel_pitch;
  const int tile_w = static_cast<int>(p.axis[2].tile);
  const Index input_h = static_cast<Index>(p.axis[1].input);
  const Index input_w = static_cast<Index>(p.axis[2].input);
  const Index volume = static_cast<Index>(p.axis[0].input) * input_h * input_w;
  const int existing = static_cast<int>(
      min(static_cast<Index>(channels), static_cast<Index>(p.in_channels) - stage.channel));
  // Where a channel has fewer units than the block has threads, several channels are loaded at
  // once.
  const int threads = static_cast<int>(blockDim.x);
  const int together = gemm.copy_channels;
  for (int e = static_cast<int>(threadIdx.x); e < copies * together; e += threads) {
    int place;
    int channel = divmod(e, gemm.copies, &place);
    int unit_of_row;
    const int row = divmod(place, gemm.row_copies, &unit_of_row);
    int h;
    const int d = divmod(row, gemm.stage_rows_h, &h);
    if (h >= stage.rows_h) continue;
    const Index input[3] = {stage.first[0] + d, stage.first[1] + h,
                            stage.first[2] + unit_of_row * unit};
    bool inside = true;
#pragma unroll
    for (int a = 0; a < 3; ++a) {
      inside &= static_cast<UnsignedIndex>(input[a]) < static_cast<UnsignedIndex>(p.axis[a].input);
    }
    // An address of x is wanted even where nothing is read.
    const Element* source = x + (inside ? (stage.channel + channel) * volume +
                                              (input[0] * input_h + input[1]) * input_w + input[2]
                                        : 0);
    const Index step = inside ? together * volume : 0;
    Element* target = tile + (channel * pitch + row * tile_w + unit_of_row * unit);
    copy_channels(target, source, inside, channel, existing, channels, together, step,
                  together * pitch, unit);
  }
}

/// Loads consecutive fragments.
__device__ inline void load_fragments(uint4* target, const uint4* __restrict__ source, int count) {
  const int threads = static_cast<int>(blockDim.x);
  int e = static_cast<int>(threadIdx.x);
  unsigned address = shared_address(target + e);
  source += e;
#pragma unroll 1
  for (; e < count; e += threads) {
    copy_async<16>(address, source);
    address += threads * static_cast<unsigned>(sizeof(uint4));
    source += threads;
  }
}
