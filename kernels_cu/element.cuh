// Storage and accumulator types of one dtype, their conversions, and the arithmetic on them.
//
// 16-bit floats accumulate in float32 and are rounded once, to nearest even, when they are stored.
// A complex product is four real ones: no three-product scheme, whose cancellation costs accuracy.
#pragma once
#include <convt3d_config.cuh>
#include <ptx.cuh>

struct Half {
  unsigned short bits;
};

struct BFloat16 {
  unsigned short bits;
};

template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
  Real re;
  Real im;
};

/// Maps CONVT3D_DTYPE to the type in memory and the type that sums are kept in.
template <int kDtype>
struct ElementOf;
template <>
struct ElementOf<0> {
  using Stored = Half;
  using Summed = float;
};
template <>
struct ElementOf<1> {
  using Stored = BFloat16;
  using Summed = float;
};
template <>
struct ElementOf<2> {
  using Stored = float;
  using Summed = float;
};
template <>
struct ElementOf<3> {
  using Stored = double;
  using Summed = double;
};
template <>
struct ElementOf<4> {
  using Stored = Complex<float>;
  using Summed = Complex<float>;
};
template <>
struct ElementOf<5> {
  using Stored = Complex<double>;
  using Summed = Complex<double>;
};

using Element = ElementOf<CONVT3D_DTYPE>::Stored;
using Accumulator = ElementOf<CONVT3D_DTYPE>::Summed;

__device__ inline float to_accumulator(Half value) { return half_bits_to_float(value.bits); }

__device__ inline float to_accumulator(BFloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

template <class T>
__device__ inline T to_accumulator(T value) {
  return value;
}

__device__ inline void store(Half* target, float value) {
  target->bits = float_to_half_bits(value);
}

/// Rounds to nearest even on the bits, so that devices older than sm_80 need no instruction for it.
__device__ inline void store(BFloat16* target, float value) {
  const unsigned bits = __float_as_uint(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  target->bits = static_cast<unsigned short>(is_nan ? 0x7fffu : rounded);
}

template <class T>
__device__ inline void store(T* target, T value) {
  *target = value;
}

/// The neutral element of a sum: -0 + v is v for every v, -0 included. (+0 would turn -0 into +0.)
template <class T>
struct EmptySum {
  __device__ static T value() { return static_cast<T>(-0.0); }
  __device__ static bool is(T sum) { return sum == T(0) && signbit_of(sum); }
  __device__ static bool signbit_of(float sum) { return __float_as_uint(sum) >> 31; }
  __device__ static bool signbit_of(double sum) { return __double_as_longlong(sum) < 0; }
};

template <class Real>
struct EmptySum<Complex<Real>> {
  __device__ static Complex<Real> value() {
    return {EmptySum<Real>::value(), EmptySum<Real>::value()};
  }
  __device__ static bool is(Complex<Real> sum) {
    return EmptySum<Real>::is(sum.re) && EmptySum<Real>::is(sum.im);
  }
};

/// Returns x * w + sum, each real product fused with its addition.
__device__ inline float multiply_add(float x, float w, float sum) { return fmaf(x, w, sum); }
__device__ inline double multiply_add(double x, double w, double sum) { return fma(x, w, sum); }

template <class Real>
__device__ inline Complex<Real> multiply_add(Complex<Real> x, Complex<Real> w, Complex<Real> sum) {
  sum.re = multiply_add(x.re, w.re, sum.re);
  sum.re = multiply_add(-x.im, w.im, sum.re);
  sum.im = multiply_add(x.re, w.im, sum.im);
  sum.im = multiply_add(x.im, w.re, sum.im);
  return sum;
}

template <class Real>
__device__ inline bool is_nan(Real value) {
  return value != value;
}

template <class Real>
__device__ inline bool is_nan(Complex<Real> value) {
  return is_nan(value.re) || is_nan(value.im);
}

template <class Real>
__device__ inline Real conjugate(Real value) {
  return value;
}

template <class Real>
__device__ inline Complex<Real> conjugate(Complex<Real> value) {
  return {value.re, -value.im};
}

template <class Real>
__device__ inline Complex<Real> operator+(Complex<Real> a, Complex<Real> b) {
  return {a.re + b.re, a.im + b.im};
}

template <class Real>
__device__ inline void atomic_add(Real* target, Real value) {
  atomicAdd(target, value);
}

/// Adds the two parts one after the other; a reader in between would see half of the sum.
template <class Real>
__device__ inline void atomic_add(Complex<Real>* target, Complex<Real> value) {
  atomicAdd(&target->re, value.re);
  atomicAdd(&target->im, value.im);
}
