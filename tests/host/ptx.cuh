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
