// Thin wrappers over what C++ cannot say: PTX instructions and dynamic shared memory.
//
// One instruction or one object per function. The test suite compiles the kernels as C++ with its
// own ptx.cuh earlier on the include path, so a kernel uses nothing of the machine that is not here
// or a CUDA built-in.
#pragma once

/// Returns the block's dynamic shared memory, aligned to 16 bytes.
__device__ inline unsigned char* dynamic_shared_memory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}

/// Converts the bits of an IEEE half to float, exactly.
__device__ inline float half_bits_to_float(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

/// Rounds a float to the nearest IEEE half, ties to even, overflow to infinity.
__device__ inline unsigned short float_to_half_bits(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
