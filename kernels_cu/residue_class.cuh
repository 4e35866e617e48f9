// Phases (residue classes) of a strided transposed convolution.
//
// Along one axis an output o, a tap k and an input i meet when o + padding = i*stride + k*dilation.
// So the taps that reach o have k*dilation = o + padding modulo stride, and depend on o modulo
// stride alone. With g = gcd(stride, dilation) the taps of a phase are first_tap, first_tap +
// stride/g, ..., and each step moves the input down by dilation/g; first_tap follows from the
// inverse of dilation/g modulo stride/g. Outputs are numbered o = phase + m*stride, so a phase is a
// dense stride-1 gather over m.
#pragma once
#include <convt3d_params.cuh>

/// The taps of one phase of one axis. Tap j of the phase is first_tap + j*tap_step of the kernel,
/// and meets the output phase + m*stride at the input origin + m - j*input_step.
struct Phase {
  Index first_tap;
  Index taps;
  Index origin;
};

/// Returns the taps of the outputs phase, phase + stride, ...
///
/// Assumes: 0 <= phase < axis.phases.
__device__ inline Phase phase_of_axis(const AxisParams& axis, Index phase) {
  const Index stride = static_cast<Index>(axis.stride);
  const Index gcd = static_cast<Index>(axis.gcd);
  const Index padded = phase + static_cast<Index>(axis.padding);
  const Index residue = padded % stride;
  Phase result{0, 0, 0};
  if (residue % gcd != 0) return result;
  // The product passes 2^31 for strides above 2^15, hence 64 bits.
  const long long product = static_cast<long long>(residue / gcd) * axis.inverse;
  result.first_tap = static_cast<Index>(product % axis.tap_step);
  if (result.first_tap >= axis.kernel) return result;
  const Index tap_step = static_cast<Index>(axis.tap_step);
  result.taps = (static_cast<Index>(axis.kernel) - result.first_tap + tap_step - 1) / tap_step;
  result.origin = (padded - result.first_tap * static_cast<Index>(axis.dilation)) / stride;
  return result;
}
