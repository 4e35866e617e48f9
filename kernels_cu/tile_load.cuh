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

/// Returns how far an element lies from the first of channel 0. Unsigned, because coordinates may
/// lie far outside: then the offset wraps around, and may be used only in a sum that does not.
__device__ inline UnsignedIndex offset_in_tensor(const BoxCopy& copy, Index channel,
                                                 const Index (&at)[3]) {
  UnsignedIndex offset = static_cast<UnsignedIndex>(channel);
#pragma unroll
  for (int a = 0; a < 3; ++a) {
    offset =
        offset * static_cast<UnsignedIndex>(copy.extent[a]) + static_cast<UnsignedIndex>(at[a]);
  }
  return offset;
}

/// A unit of the rows of a box, of every copy_channels-th channel from `channel` up: what a thread
/// copies.
struct BoxUnit {
  int channel;
  Index at[3];           // from the first coordinates of the box
  UnsignedIndex source;  // elements from the first of the box, in the tensor
  int target;            // bytes likewise in shared memory
};

/// Returns unit e of a box: consecutive ones are consecutive in a row. Where a channel has fewer
/// than the block has threads, several channels are copied at once.
///
/// The same for all boxes, and so worked out once by a thread that loads many.
__device__ inline BoxUnit unit_of_box(int e, const BoxCopy& copy) {
  BoxUnit unit;
  int place;
  unit.channel = divmod(e, copy.copies, &place);
  int unit_of_row;
  const int row = divmod(place, copy.row_copies, &unit_of_row);
  int h;
  const int d = divmod(row, copy.rows_h, &h);
  const int w = unit_of_row * copy.copy_elements;
  unit.at[0] = d * copy.plane_step;
  unit.at[1] = h;
  unit.at[2] = w;
  unit.source = offset_in_tensor(copy, unit.channel, unit.at);
  unit.target =
      (unit.channel * copy.channel_pitch + row * copy.row + w) * static_cast<int>(sizeof(Element));
  // A thread without a unit has one of a row that no box has.
  if (unit.channel >= copy.copy_channels) unit.at[1] = static_cast<Index>(copy.rows_h.divisor);
  return unit;
}

/// Calls `next`, which adds `together` to `channel`, until that reaches `end`: four times in a row
/// as long as possible, because the loop costs as much as a copy.
template <class Next>
__device__ inline void for_each_channel(const int& channel, int end, int together,
                                        const Next& next) {
#pragma unroll 1
  while (channel + 3 * together < end) {
    next();
    next();
    next();
    next();
  }
#pragma unroll 1
  while (channel < end) next();
}

/// Copies kBytes of every copy_channels-th channel, from `channel` up; zeros if not `inside`, and
/// past the `existing` channels.
///
/// target  shared address
template <int kBytes>
__device__ inline void copy_channels_of(unsigned target, const Element* source, bool inside,
                                        int channel, int existing, int channels,
                                        const BoxCopy& copy) {
  const int together = copy.copy_channels;
  const unsigned target_step = copy.target_step * static_cast<unsigned>(sizeof(Element));
  // An address of the tensor is wanted even where nothing is read.
  const Index source_step = inside ? static_cast<Index>(copy.source_step) : 0;
  if constexpr (kBytes >= 4) {
    const int bytes = inside ? kBytes : 0;
    const auto copy_next = [&] {
      copy_async<kBytes>(target, source, bytes);
      source += source_step;
      target += target_step;
      channel += together;
    };
    const auto clear_next = [&] {
      copy_async<kBytes>(target, source, 0);
      target += target_step;
      channel += together;
    };
    for_each_channel(channel, existing, together, copy_next);
    for_each_channel(channel, channels, together, clear_next);
  } else {
    unsigned char* const memory = dynamic_shared_memory();
    Element* to = reinterpret_cast<Element*>(memory + (target - shared_address(memory)));
#pragma unroll 4
    for (; channel < channels; channel += together) {
      Element value{};  // cp.async has no such size
      if (inside && channel < existing) value = *source;
      *to = value;
      source += source_step;
      to += copy.target_step;
    }
  }
}

/// The same for the units of `copy`.
__device__ inline void copy_channels(unsigned target, const Element* source, bool inside,
                                     int channel, int existing, int channels, const BoxCopy& copy) {
  const int bytes = copy.copy_elements * static_cast<int>(sizeof(Element));
  if (bytes == 16) {
    copy_channels_of<16>(target, source, inside, channel, existing, channels, copy);
  } else if (bytes == 8) {
    copy_channels_of<8>(target, source, inside, channel, existing, channels, copy);
  } else if (bytes == 4) {
    copy_channels_of<4>(target, source, inside, channel, existing, channels, copy);
  } else {
    copy_channels_of<2>(target, source, inside, channel, existing, channels, copy);
  }
}

/// Loads a box as [channel][plane][row][position], zeros outside the tensor.
///
/// tile     shared address
/// source   channel 0 of the sample and group
/// first    unit_of_box of this thread's number
/// channels of the box; those that the tensor does not have are zeros
__device__ inline void load_box(unsigned tile, const Element* __restrict__ source,
                                const BoxCopy& copy, const Box& box, const BoxUnit& first,
                                int channels) {
  const int existing = static_cast<int>(
      min(static_cast<Index>(channels), static_cast<Index>(copy.channels) - box.channel));
  const UnsignedIndex box_source = offset_in_tensor(copy, box.channel, box.first);
  const auto load_unit = [&](const BoxUnit& unit) {
    if (unit.at[1] >= box.rows_h) return;
    bool inside = true;
#pragma unroll
    for (int a = 0; a < 3; ++a) {
      inside &= static_cast<UnsignedIndex>(box.first[a] + unit.at[a]) <
                static_cast<UnsignedIndex>(copy.extent[a]);
    }
    const unsigned to = tile + unit.target;
    const Element* const from =
        source + (inside ? static_cast<Index>(box_source + unit.source) : 0);
    copy_channels(to, from, inside, unit.channel, existing, channels, copy);
  };
  load_unit(first);
  // More than one only if a channel has more units than the block has threads.
  const int threads = static_cast<int>(blockDim.x);
  const int copies = static_cast<int>(copy.copies.divisor);
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x) + threads; e < copies; e += threads) {
    load_unit(unit_of_box(e, copy));
  }
}

/// Loads consecutive fragments to a shared address.
__device__ inline void load_fragments(unsigned target, const uint4* __restrict__ source,
                                      int count) {
  constexpr unsigned kBytes = static_cast<unsigned>(sizeof(uint4));
  const unsigned end = target + count * kBytes;
  const unsigned step = blockDim.x * kBytes;
  source += threadIdx.x;
#pragma unroll 1
  for (target += threadIdx.x * kBytes; target < end; target += step) {
    copy_async<16>(target, source);
    source += blockDim.x;
  }
}
