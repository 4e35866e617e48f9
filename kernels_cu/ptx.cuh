// Thin wrappers over what C++ cannot say: PTX instructions and dynamic shared memory.
//
// One instruction or one object per function. The test suite compiles the kernels as C++ with its
// own ptx.cuh earlier on the include path, so a kernel uses nothing of the machine that is not here
// or a CUDA built-in. Source of the fragment layouts and of cp.async: PTX ISA, sections "Warp Level
// Matrix Multiply-Accumulate Instructions" and "Data Movement and Conversion Instructions".
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

/// Rounds a float to the nearest tf32 (11 bits of significand), ties away from zero.
__device__ inline unsigned float_to_tf32(float value) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

/// Rounds two floats to the nearest bfloat16, ties to even; `low` goes to bits 0 to 15.
__device__ inline unsigned floats_to_bfloat16x2(float low, float high) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

/// Returns a value of which the compiler knows nothing: what depends on it is neither computed
/// ahead, where it may not be needed, nor merged with other computations.
__device__ inline int hidden(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ inline long long hidden(long long value) {
  asm volatile("" : "+l"(value));
  return value;
}

/// Returns the address of an object in shared memory for `load_shared`.
__device__ inline unsigned shared_address(const void* object) {
  return static_cast<unsigned>(__cvta_generic_to_shared(object));
}

/// Loads from shared memory by a 32-bit address, whose arithmetic costs half of a pointer's, and a
/// constant number of bytes further, which cost nothing.
template <int kOffset = 0>
__device__ inline float load_shared(unsigned address, float) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1+%2];" : "=f"(value) : "r"(address), "n"(kOffset));
  return value;
}

template <int kOffset = 0>
__device__ inline double load_shared(unsigned address, double) {
  double value;
  asm volatile("ld.shared.f64 %0, [%1+%2];" : "=d"(value) : "r"(address), "n"(kOffset));
  return value;
}

template <int kOffset = 0>
__device__ inline unsigned short load_shared(unsigned address, unsigned short) {
  unsigned short value;
  asm volatile("ld.shared.u16 %0, [%1+%2];" : "=h"(value) : "r"(address), "n"(kOffset));
  return value;
}

__device__ inline uint4 load_shared(unsigned address, uint4) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address));
  return value;
}

__device__ inline float4 load_shared(unsigned address, float4) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address));
  return value;
}

__device__ inline double2 load_shared(unsigned address, double2) {
  double2 value;
  asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];" : "=d"(value.x), "=d"(value.y) : "r"(address));
  return value;
}

/// Starts a copy of kBytes (4, 8 or 16) from global memory to a shared address.
///
/// Assumes: both addresses are multiples of kBytes.
template <int kBytes>
__device__ inline void copy_async(unsigned address, const void* source) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(source)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(source),
                 "n"(kBytes)
                 : "memory");
  }
}

/// The same for `bytes` of them, followed by zeros.
///
/// Assumes: `source` is an address of the array even where nothing is read.
template <int kBytes>
__device__ inline void copy_async(unsigned address, const void* source, int bytes) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(source),
                 "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

/// Closes the group of the copies that this thread has started since the last call.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most kPending of this thread's groups of copies are under way.
template <int kPending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Makes what this thread wrote to shared memory visible to wgmma, after the barrier that follows.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Loads four 8x8 matrices of 16-bit elements, transposed: lanes 8i to 8i + 7 give the addresses of
/// the rows of matrix i, and lane 4g + t gets of matrix i the elements (2t, g) and (2t + 1, g).
__device__ inline void load_matrices_transposed(unsigned (&matrix)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
               : "r"(address));
}

// sum += a * b for a warp. In every shape lane 4g + t holds, of the 16 x 8 sums, those of row g and
// columns 2t, 2t + 1, then those of row g + 8.

/// 16 x 8 x 16, float16: a[0] is row g and k = 2t, 2t + 1, a[1] row g + 8, a[2] and a[3] the same
/// at k + 8; b[0] is column g and k = 2t, 2t + 1, b[1] the same at k + 8.
__device__ inline void mma_float16(float (&sum)[4], uint4 a, const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]));
}

/// 16 x 8 x 16, bfloat16: the layout of float16.
__device__ inline void mma_bfloat16(float (&sum)[4], uint4 a, const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]));
}

/// 16 x 8 x 8, tf32, sum = start + a * b: a[0] is row g and k = t, a[1] row g + 8, a[2] and a[3]
/// the same at k + 4; b[0] is column g and k = t, b[1] the same at k + 4.
__device__ inline void mma_tf32(float (&sum)[4], uint4 a, const unsigned (&b)[2],
                                const float (&start)[4]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %11, %12, %13};"
      : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]), "f"(start[0]), "f"(start[1]),
        "f"(start[2]), "f"(start[3]));
}

/// 8 x 8 x 4, float64, sums of 8 rows: a is row g and k = t, b is column g and k = t.
__device__ inline void mma_float64(double& sum0, double& sum1, double a, double b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(sum0), "+d"(sum1)
      : "d"(a), "d"(b));
}
