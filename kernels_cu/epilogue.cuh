#pragma once
#include <convt3d_params.cuh>
#include <element.cuh>
__device__ inline Accumulator finish(Accumulator sum, Accumulator bias, const Params& p) {
  return sum + bias;
}
