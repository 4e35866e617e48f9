// Phases (residue classes) of a strided transposed convolution.
//
// Along one axis an output o, a tap k and an input i meet when o + padding = i*stride + k*dilation.
// So the taps that reach o have k*dilation = o + padding modulo stride, and depend on o modulo
// stride alone. With g = gcd(stride, dilation) the taps of a phase are first_tap, first_tap +
// stride/g, ..., and each step moves the input down by dilation/g; first_tap follows from the
// inverse of dilation/g modulo stride/g. Outputs are numbered o = phase + m*stride, so a phase is a
// dense stride-1 gather over m.
//
// The gradient of the input is a correlation: input i meets output i*stride + k*dilation - padding.
// With taps counted from the last one, it has the form of a single phase whose gather has a stride
// of its own, AxisParams::input_stride, and an origin.
#pragma once
#include <convt3d_params.cuh>

/// The taps of one phase of one axis. Tap j of the phase is first_tap + j*tap_step of the kernel,
/// and meets the output phase + m*stride at the input origin + m*input_stride - j*input_step.
struct Phase {
  Index first_tap;
  Index taps;
  Index origin;
};

/// Returns the taps of the outputs phase, phase + stride, ...
///
/// Assumes: 0 <= phase < axis.phases.
__device__ inline Phase phase_of_axis(const AxisParams& axis, Index phase) {
  Phase result{0, 0, 0};
  Index residue;
  const Index quotient =
      divmod(phase + static_cast<Index>(axis.padding), axis.stride_divmod, &residue);
  Index remainder;
  const Index shift = divmod(residue, axis.gcd_divmod, &remainder);
  if (remainder != 0) return result;
  divmod(shift * static_cast<Index>(axis.inverse), axis.tap_step_divmod, &result.first_tap);
  if (result.first_tap >= static_cast<Index>(axis.kernel)) return result;
  result.taps = 1 + divmod(static_cast<Index>(axis.kernel) - 1 - result.first_tap,
                           axis.tap_step_divmod, &remainder);
  result.origin = static_cast<Index>(axis.origin) + quotient -
                  divmod(result.first_tap * static_cast<Index>(axis.dilation) - residue,
                         axis.stride_divmod, &remainder);
  return result;
}
