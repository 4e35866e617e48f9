// The loop over the stages of a tensor-core kernel: asynchronous copies run ahead of the products.
#pragma once
#include <ptx.cuh>

/// Loads and multiplies stages 0 to count - 1 in order, the loads stages - 1 ahead.
///
/// stages    buffers, 2 to 4
/// load      called by all threads with the buffer of the next stage; starts its copies
/// multiply  called by all threads with the buffer of the next stage, which has arrived
/// meanwhile called by all threads once, while the first copies are under way
///
/// kForWgmma: `multiply` reads the buffers by wgmma.
///
/// Assumes: all threads have used the buffers. Afterwards some may still be multiplying.
template <bool kForWgmma = false, class Load, class Multiply, class Meanwhile>
__device__ inline void run_pipeline(int stages, Index count, const Load& load,
                                    const Multiply& multiply, const Meanwhile& meanwhile) {
  // The first iterations only fill the pipeline: the loads stand here once.
  int filled = 0;
  int buffer = 0;
  Index s = 1 - stages;
  // At least one iteration, which `do` tells the compiler: else it would copy all sums of the loop
  // once more, for the case of none.
  do {
    if (s >= 0) {
      if (stages == 3) {
        wait_for_copies<1>();
      } else if (stages == 2) {
        wait_for_copies<0>();
      } else {
        wait_for_copies<2>();
      }
      if constexpr (kForWgmma) fence_async_proxy();
      // The stage has arrived for all threads, and all have used the buffer filled next.
      __syncthreads();
    }
    if (s + stages - 1 < count) {
      load(filled);
      filled = filled + 1 == stages ? 0 : filled + 1;
    }
    commit_copies();
    if (s < 0) {
      if (s == -1) meanwhile();
      continue;
    }
    multiply(buffer);
    buffer = buffer + 1 == stages ? 0 : buffer + 1;
  } while (++s < count);
}

template <class Load, class Multiply>
__device__ inline void run_pipeline(int stages, Index count, const Load& load,
                                    const Multiply& multiply) {
  run_pipeline(stages, count, load, multiply, [] {});
}
