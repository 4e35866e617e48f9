// The entry points that Python calls in the library of one kernel.
#pragma once
#include <utility>
#include <vector>

#include "error_text.h"
#include "schedule.h"
#include "shared_memory.h"
#include "thread_block.h"

namespace host {

/// A kernel with its parameter types, taken from its function type.
template <auto kKernel>
struct Kernel;

template <class... Parameters, void (*kKernel)(Parameters...)>
struct Kernel<kKernel> {
  static constexpr size_t kParameterCount = sizeof...(Parameters);
  static constexpr size_t kParameterSizes[] = {sizeof(Parameters)...};
  static inline void** arguments;

  /// Calls the kernel as the running thread, with copies of the arguments as on the device.
  static void call() { call(std::index_sequence_for<Parameters...>()); }

 private:
  template <size_t... kIndex>
  static void call(std::index_sequence<kIndex...>) {
    kKernel(*static_cast<Parameters*>(arguments[kIndex])...);
  }
};

/// Runs all blocks of a grid, one after the other, up to the first error.
inline void run_grid(unsigned grid, unsigned block, size_t shared_bytes, void (*body)(),
                     Order order, unsigned long long seed, ErrorText* error) {
  gridDim.x = grid;
  blockDim.x = block;
  Schedule schedule(order, seed);
  SharedMemory shared(shared_bytes);
  ThreadBlock threads(block, body, &schedule, error);
  std::vector<unsigned> blocks(grid);
  schedule.arrange(blocks.data(), grid);
  for (unsigned index : blocks) {
    if (error->is_set()) return;
    blockIdx.x = index;
    shared.poison();
    threads.run();
    shared.check_guards(index, error);
  }
}

}  // namespace host

#define HOST_EXPORT __attribute__((visibility("default")))

/// Defines the entry points. host_launch returns 0, or 1 with a message in `error`.
#define HOST_EXPORT_KERNEL(kernel)                                                               \
  extern "C" {                                                                                   \
  extern HOST_EXPORT const size_t host_parameter_count = host::Kernel<&kernel>::kParameterCount; \
  HOST_EXPORT const size_t* host_parameter_sizes() {                                             \
    return host::Kernel<&kernel>::kParameterSizes;                                               \
  }                                                                                              \
  HOST_EXPORT int host_launch(unsigned grid, unsigned block, size_t shared_bytes, void** args,   \
                              int order, unsigned long long seed, char* error,                   \
                              size_t error_size) {                                               \
    host::ErrorText text(error, error_size);                                                     \
    host::Kernel<&kernel>::arguments = args;                                                     \
    host::run_grid(grid, block, shared_bytes, &host::Kernel<&kernel>::call,                      \
                   static_cast<host::Order>(order), seed, &text);                                \
    return text.is_set();                                                                        \
  }                                                                                              \
  }
