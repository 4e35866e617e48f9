// Loads of one stage of a tensor-core kernel from global to shared memory, by the whole block.
#pragma once
#include <convt3d_params.cuh>
#include <element.cuh>
#include <ptx.cuh>

/// A box of planes, rows and positions of some channels of one group of a tensor.
struct Box {
  Index channel;   // first, within the group
  Index first[3];  // coordinates; may lie outside the tensor
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

/// Loads a box as [channel][plane][row][position], zeros outside the tensor.
///
/// A thread copies the same place of every channel that it takes, so that it computes one address;
/// consecutive threads take consecutive units of a row.
///
/// source   channel 0 of the sample and group
/// channels of the box; those that the tensor does not have are zeros
__device__ inline void load_box(Element* tile, const Element* __restrict__ source,
                                const BoxCopy& copy, const Box& box, int channels) {
  const int copies = static_cast<int>(copy.copies.divisor);
  const int unit = copy.copy_elements;
  const int pitch = copy.channel_pitch;
  const Index extent_h = static_cast<Index>(copy.extent[1]);
  const Index extent_w = static_cast<Index>(copy.extent[2]);
  const Index volume = static_cast<Index>(copy.extent[0]) * extent_h * extent_w;
  const int existing = static_cast<int>(
      min(static_cast<Index>(channels), static_cast<Index>(copy.channels) - box.channel));
  // Where a channel has fewer units than the block has threads, several channels are loaded at
  // once.
  const int threads = static_cast<int>(blockDim.x);
  const int together = copy.copy_channels;
  for (int e = static_cast<int>(threadIdx.x); e < copies * together; e += threads) {
    int place;
    int channel = divmod(e, copy.copies, &place);
    int unit_of_row;
    const int row = divmod(place, copy.row_copies, &unit_of_row);
    int h;
    const int d = divmod(row, copy.rows_h, &h);
    if (h >= box.rows_h) continue;
    const Index at[3] = {box.first[0] + d * copy.plane_step, box.first[1] + h,
                         box.first[2] + unit_of_row * unit};
    bool inside = true;
#pragma unroll
    for (int a = 0; a < 3; ++a) {
      inside &= static_cast<UnsignedIndex>(at[a]) < static_cast<UnsignedIndex>(copy.extent[a]);
    }
    // An address of the tensor is wanted even where nothing is read.
    const Element* const first =
        source +
        (inside ? (box.channel + channel) * volume + (at[0] * extent_h + at[1]) * extent_w + at[2]
                : 0);
    copy_channels(tile + (channel * pitch + row * copy.row + unit_of_row * unit), first, inside,
                  channel, existing, channels, together, inside ? together * volume : 0,
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
