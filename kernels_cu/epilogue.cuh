// The last step of every output: bias and activation, in the type of the sums, before the one
// rounding to storage.
//
// To add an activation: a number in convt3d_config.cuh, its name in cupy_convt3d/_activation.py, a
// branch here, and one in cupy_convt3d/_numpy_activation.py.
#pragma once
#include <convt3d_params.cuh>
#include <element.cuh>

/// Consecutive outputs that a lane stores together.
template <int kCount>
struct alignas(sizeof(Element) * kCount < 16 ? sizeof(Element) * kCount : 16) OutputVector {
  Element value[kCount];
};

__device__ inline float error_function_complement(float value) { return erfcf(value); }
__device__ inline double error_function_complement(double value) { return erfc(value); }
__device__ inline float exponential(float value) { return expf(value); }
__device__ inline double exponential(double value) { return exp(value); }

/// Returns the activation of a sum, bias included. NaN stays NaN for every activation.
///
/// Assumes: no activation with complex sums.
template <class Sum>
__device__ inline Sum activate(Sum value, const Params& p) {
  if constexpr (kActivation == kRelu) {
    return value < Sum(0) ? Sum(0) : value;
  } else if constexpr (kActivation == kLeakyRelu) {
    return value > Sum(0) ? value : value * static_cast<Sum>(p.negative_slope);
  } else if constexpr (kActivation == kGelu) {
    // By erfc, because 1 + erf has no correct digit left far below 0.
    const Sum sqrt_half = static_cast<Sum>(0.70710678118654752440);
    return Sum(0.5) * value * error_function_complement(-value * sqrt_half);
  } else if constexpr (kActivation == kSilu) {
    return value / (Sum(1) + exponential(-value));
  } else {
    return value;
  }
}

/// Returns the sum of no products: what does not change the bias that is added to it. Without a
/// bias +0, as if that were the bias, which then need not be added.
__device__ inline Accumulator empty_sum(const Params& p) {
  return p.has_bias ? EmptySum<Accumulator>::value() : Accumulator{};
}

/// Returns what is stored for a sum of products.
template <class Sum>
__device__ inline Sum finish(Sum sum, Sum bias, const Params& p) {
  return activate(sum + bias, p);
}
