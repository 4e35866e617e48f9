// Host versions of kernels_cu/ptx.cuh, found before it on the include path.
//
// The half conversions are software, in the default rounding mode (nearest, ties to even), so that
// they need no F16C and give the bits that PTX gives.
#pragma once

/// Returns the block's dynamic shared memory, aligned to 16 bytes.
inline unsigned char* dynamic_shared_memory() { return host::SharedMemory::dynamic(); }

/// Converts the bits of an IEEE half to float, exactly.
inline float half_bits_to_float(unsigned short bits) {
  const unsigned sign = (bits & 0x8000u) << 16;
  const unsigned exponent = bits >> 10 & 0x1fu;
  const unsigned mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    // Zero or subnormal: an integer number of 2^-24, which a float holds.
    return __uint_as_float(sign | __float_as_uint(static_cast<float>(mantissa) * 0x1p-24f));
  }
  const unsigned float_exponent = exponent == 0x1fu ? 0xffu : exponent + (127 - 15);
  return __uint_as_float(sign | float_exponent << 23 | mantissa << 13);
}

/// Rounds a float to the nearest IEEE half, ties to even, overflow to infinity. Any NaN gives
/// 0x7fff.
inline unsigned short float_to_half_bits(float value) {
  const unsigned sign = __float_as_uint(value) >> 16 & 0x8000u;
  const unsigned magnitude = __float_as_uint(value) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fffu;
  // 65520 lies halfway between the largest half and 2^16: the tie goes to the even 2^16, infinity.
  if (magnitude >= __float_as_uint(65520.0f)) return static_cast<unsigned short>(sign | 0x7c00u);
  if (magnitude < __float_as_uint(0x1p-14f)) {
    // Subnormal: one unit in the last place of 0.5f is 2^-24, so this addition rounds to a half.
    const float shifted = __uint_as_float(magnitude) + 0.5f;
    return static_cast<unsigned short>(sign | (__float_as_uint(shifted) - __float_as_uint(0.5f)));
  }
  const unsigned lowest_kept = magnitude >> 13 & 1u;
  const unsigned rounded = (magnitude + 0xfffu + lowest_kept) >> 13;
  return static_cast<unsigned short>(sign | (rounded - ((127 - 15) << 10)));
}

/// Rounds a float to the nearest tf32 (11 bits of significand), ties away from zero.
inline unsigned float_to_tf32(float value) {
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffffffu;
  if ((bits & 0x7fffffffu) == 0x7f800000u) return bits;
  return (bits + 0x1000u) & ~0x1fffu;
}

/// Rounds a float to the nearest bfloat16, ties to even.
inline unsigned float_to_bfloat16(float value) {
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

inline unsigned floats_to_bfloat16x2(float low, float high) {
  return float_to_bfloat16(low) | float_to_bfloat16(high) << 16;
}

template <class T>
inline T hidden(T value) {
  return value;
}

/// An offset into the dynamic shared memory.
inline unsigned shared_address(const void* object) {
  return static_cast<unsigned>(static_cast<const unsigned char*>(object) - dynamic_shared_memory());
}

template <int kOffset = 0, class T>
inline T load_shared(unsigned address, T) {
  address += kOffset;
  if (address % sizeof(T)) __builtin_trap();
  T value;
  std::memcpy(&value, dynamic_shared_memory() + address, sizeof value);
  return value;
}

// Asynchronous copies are done at once: the weakest thing that a device may do to a kernel that
// waits for them too late is left to the device itself.

template <int kBytes>
inline void copy_async(unsigned address, const void* source, int bytes = kBytes) {
  void* const target = dynamic_shared_memory() + address;
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
  // Stops the run like the misaligned address that a device reports.
  if (reinterpret_cast<uintptr_t>(target) % kBytes ||
      reinterpret_cast<uintptr_t>(source) % kBytes) {
    __builtin_trap();
  }
  std::memcpy(target, source, bytes);
  std::memset(static_cast<unsigned char*>(target) + bytes, 0, kBytes - bytes);
}

inline void commit_copies() {}

template <int kPending>
inline void wait_for_copies() {}

inline void fence_async_proxy() {}

inline void mma_float16(float (&sum)[4], uint4 a, const unsigned (&b)[2]) {
  host::mma<16, 2>(sum, a, b, [](unsigned bits, int place) {
    return static_cast<double>(
        half_bits_to_float(static_cast<unsigned short>(bits >> (16 * place))));
  });
}

inline void mma_bfloat16(float (&sum)[4], uint4 a, const unsigned (&b)[2]) {
  host::mma<16, 2>(sum, a, b, [](unsigned bits, int place) {
    return static_cast<double>(__uint_as_float(bits >> (16 * place) << 16));
  });
}

inline void mma_tf32(float (&sum)[4], uint4 a, const unsigned (&b)[2], const float (&start)[4]) {
  float total[4] = {start[0], start[1], start[2], start[3]};
  host::mma<8, 1>(total, a, b, [](unsigned bits, int) {
    return static_cast<double>(__uint_as_float(bits & ~0x1fffu));
  });
  std::memcpy(sum, total, sizeof total);
}

inline void mma_float64(double& sum0, double& sum1, double a, double b) {
  const host::WarpView<double2> warp({a, b});
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  for (int k = 0; k < 4; ++k) {
    sum0 = __builtin_fma(warp[4 * g + k].x, warp[4 * (2 * t) + k].y, sum0);
    sum1 = __builtin_fma(warp[4 * g + k].x, warp[4 * (2 * t + 1) + k].y, sum1);
  }
}

inline void load_matrices_transposed(unsigned (&matrix)[4], unsigned address) {
  if (address % 16) __builtin_trap();
  const auto* own = reinterpret_cast<const unsigned short*>(dynamic_shared_memory() + address);
  const host::WarpView<const unsigned short*> warp(own);
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  for (int i = 0; i < 4; ++i) {
    const unsigned low = warp[8 * i + 2 * t][g];
    const unsigned high = warp[8 * i + 2 * t + 1][g];
    matrix[i] = low | high << 16;
  }
}
