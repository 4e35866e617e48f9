// Fibers: stacks that run until they suspend themselves, all on one OS thread.
//
// ucontext makes the first switch to a new stack; it saves the signal mask with a system call, so
// every later switch is a _setjmp/_longjmp pair, which does not.
#pragma once
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

namespace host {

class Fiber {
 public:
  void create(void (*entry)(), char* stack, size_t stack_bytes) {
    getcontext(&initial_);
    initial_.uc_stack.ss_sp = stack;
    initial_.uc_stack.ss_size = stack_bytes;
    initial_.uc_link = nullptr;
    makecontext(&initial_, entry, 0);
    created_ = true;
  }

  bool created() const { return created_; }

  /// Runs the fiber until it suspends itself. Not to be called from a fiber.
  [[gnu::noinline]] void resume() {
    if (_setjmp(resumer_) != 0) return;
    if (started_) _longjmp(suspended_, 1);
    started_ = true;
    setcontext(&initial_);
  }

  /// Returns to resume(). To be called on this fiber.
  [[gnu::noinline]] void suspend() {
    if (_setjmp(suspended_) == 0) _longjmp(resumer_, 1);
  }

 private:
  bool created_ = false;
  bool started_ = false;
  jmp_buf suspended_;
  ucontext_t initial_;
  static inline jmp_buf resumer_;
};

/// At most `count` fibers that run the same entry function, made when they are first needed.
class FiberPool {
 public:
  FiberPool(size_t count, void (*entry)()) : entry_(entry), fibers_(count) {
    stacks_ = mmap(nullptr, count * kStackBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks_ == MAP_FAILED) return;
    for (size_t i = count; i > 0; --i) free_.push_back(&fibers_[i - 1]);
  }
  ~FiberPool() {
    if (mapped()) munmap(stacks_, fibers_.size() * kStackBytes);
  }
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  bool mapped() const { return stacks_ != MAP_FAILED; }

  Fiber* take() {
    Fiber* fiber = free_.back();
    free_.pop_back();
    if (!fiber->created()) {
      const size_t index = fiber - fibers_.data();
      char* stack = static_cast<char*>(stacks_) + index * kStackBytes;
      // An overflow faults here instead of damaging the next fiber.
      mprotect(stack, sysconf(_SC_PAGESIZE), PROT_NONE);
      fiber->create(entry_, stack, kStackBytes);
    }
    return fiber;
  }

  /// Takes back a fiber whose thread has exited: its entry function loops and runs the next one.
  void give_back(Fiber* fiber) { free_.push_back(fiber); }

 private:
  static constexpr size_t kStackBytes = 256 << 10;

  void (*entry_)();
  std::vector<Fiber> fibers_;
  std::vector<Fiber*> free_;
  void* stacks_;
};

}  // namespace host
