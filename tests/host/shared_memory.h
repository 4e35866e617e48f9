// The shared memory of the running block: poisoned before each block, checked after it.
#pragma once
#include <cstddef>
#include <cstring>
#include <vector>

#include "error_text.h"

// Every __shared__ variable lives in one section, whose bounds the linker provides. `used`: the
// compiler does not see that the poison changes them.
#define __shared__ static __attribute__((used, section("host_shared")))
extern "C" {
extern __attribute__((weak, visibility("hidden"))) char __start_host_shared[];
extern __attribute__((weak, visibility("hidden"))) char __stop_host_shared[];
}

namespace host {

class SharedMemory {
 public:
  explicit SharedMemory(size_t dynamic_bytes)
      : dynamic_bytes_(dynamic_bytes), memory_(dynamic_bytes + 2 * kGuardBytes) {
    std::memset(memory_.data(), kGuard, memory_.size());
    dynamic_ = memory_.data() + kGuardBytes;
  }

  /// Makes what the last block left unreadable: all ones are a NaN in every format, and the integer
  /// -1.
  void poison() {
    std::memset(__start_host_shared, kPoison, __stop_host_shared - __start_host_shared);
    std::memset(dynamic_, kPoison, dynamic_bytes_);
  }

  /// Reports the first byte that a block wrote outside its dynamic shared memory.
  void check_guards(unsigned block, ErrorText* error) const {
    for (size_t i = 0; i < kGuardBytes; ++i) {
      if (memory_[i] != kGuard) return report(block, i, error);
    }
    for (size_t i = kGuardBytes + dynamic_bytes_; i < memory_.size(); ++i) {
      if (memory_[i] != kGuard) return report(block, i, error);
    }
  }

  static unsigned char* dynamic() { return dynamic_; }

 private:
  void report(unsigned block, size_t at, ErrorText* error) const {
    error->set(
        "block %u wrote outside its dynamic shared memory: byte offset %lld, it has %zu bytes",
        block, static_cast<long long>(at) - static_cast<long long>(kGuardBytes), dynamic_bytes_);
  }

  static constexpr size_t kGuardBytes = 1024;
  static constexpr unsigned char kGuard = 0xa5;
  static constexpr unsigned char kPoison = 0xff;

  size_t dynamic_bytes_;
  std::vector<unsigned char> memory_;
  static inline unsigned char* dynamic_ = nullptr;
};

}  // namespace host
