// One block of threads at a time: each thread is a fiber, and runs until it must wait for others.
//
// A thread that never waits returns on the fiber it began on, which then runs the next thread:
// without barriers a block needs one fiber. Exited threads count as arrived everywhere, as they do
// in CUDA.
#pragma once
#include <cstring>
#include <vector>

#include "error_text.h"
#include "fiber.h"
#include "schedule.h"
#include "vector_types.h"

static uint3 threadIdx{0, 0, 0};
static uint3 blockIdx{0, 0, 0};
static uint3 blockDim{1, 1, 1};
static uint3 gridDim{1, 1, 1};
constexpr int warpSize = 32;

namespace host {

/// Where the source calls a barrier.
struct Site {
  const char* file;
  int line;
};

enum class State : unsigned char { kReady, kAtBarrier, kAtCollective, kExited };
enum class Collective : unsigned char { kSync, kShuffle, kBallot };

struct Thread {
  State state;
  Collective collective;
  Site site;
  Fiber* fiber;
  // Of the collective that the thread waits in.
  unsigned mask;
  unsigned source;  // lane
  unsigned long long value;
  unsigned long long result;
};

class ThreadBlock {
 public:
  /// `body` runs the kernel for the current threadIdx and blockIdx.
  ThreadBlock(unsigned threads, void (*body)(), Schedule* schedule, ErrorText* error)
      : body_(body),
        schedule_(schedule),
        error_(error),
        threads_(threads),
        turns_(threads),
        fibers_(threads, &ThreadBlock::fiber_entry) {
    current_block_ = this;
    schedule_->arrange(turns_.data(), threads);
    if (!fibers_.mapped()) error_->set("no memory for the stacks of %u threads", threads);
  }

  /// Runs the threads of block blockIdx to their end, or to the first error.
  void run() {
    for (Thread& thread : threads_) thread = Thread{};
    live_ = ready_ = static_cast<unsigned>(threads_.size());
    while (live_ > 0) {
      if (ready_ == 0) release_barrier();
      if (schedule_->order() == Order::kShuffle) schedule_->arrange(turns_.data(), turns_.size());
      for (unsigned index : turns_) {
        if (threads_[index].state == State::kReady) take_turn(index);
        if (error_->is_set()) return;
      }
    }
  }

  /// __syncthreads of the running thread.
  void wait_at_barrier(Site site) {
    Thread& thread = threads_[running_];
    thread.site = site;
    suspend_as(thread, State::kAtBarrier);
  }

  /// Hands `value` to the other lanes of `mask`, waits for theirs, and returns this lane's result.
  unsigned long long wait_at_collective(Collective collective, unsigned mask, unsigned source,
                                        unsigned long long value, Site site) {
    Thread& thread = threads_[running_];
    if ((mask >> lane() & 1u) == 0) {
      error_->set(
          "block %u: the mask 0x%08x of a warp collective at %s:%d lacks the calling lane %u",
          blockIdx.x, mask, base_name(site.file), site.line, lane());
      suspend_as(thread, State::kAtCollective);
    }
    thread.collective = collective;
    thread.site = site;
    thread.mask = mask;
    thread.source = source;
    thread.value = value;
    thread.state = State::kAtCollective;
    --ready_;
    finish_collective(running_);
    if (thread.state != State::kReady) thread.fiber->suspend();
    return thread.result;
  }

  unsigned lane() const { return running_ % warpSize; }

  static ThreadBlock& current() { return *current_block_; }

 private:
  static void fiber_entry() {
    for (;;) {
      ThreadBlock& block = current();
      block.body_();
      --block.live_;
      block.suspend_as(block.threads_[block.running_], State::kExited);
    }
  }

  void suspend_as(Thread& thread, State state) {
    thread.state = state;
    --ready_;
    thread.fiber->suspend();
  }

  void take_turn(unsigned index) {
    Thread& thread = threads_[index];
    if (thread.fiber == nullptr) thread.fiber = fibers_.take();
    running_ = index;
    threadIdx.x = index;
    thread.fiber->resume();
    if (thread.state != State::kExited) return;
    fibers_.give_back(thread.fiber);
    // Lanes may have been waiting for this one alone.
    for (unsigned other = first_lane(index); other < end_lane(index); ++other) {
      const Thread& waiting = threads_[other];
      if (waiting.state == State::kAtCollective && (waiting.mask >> index % warpSize & 1u)) {
        finish_collective(other);
      }
    }
  }

  /// Every live thread waits. Lets them pass if it is for the same __syncthreads.
  void release_barrier() {
    const Thread* first = nullptr;
    for (const Thread& thread : threads_) {
      if (thread.state == State::kExited) continue;
      if (first == nullptr) first = &thread;
      if (thread.state != first->state) return report_stuck("deadlock", *first, thread);
      if (thread.state == State::kAtCollective) continue;
      if (thread.site.line != first->site.line ||
          std::strcmp(thread.site.file, first->site.file) != 0) {
        return report_stuck("divergent __syncthreads", *first, thread);
      }
    }
    if (first->state == State::kAtCollective) return report_stuck("deadlock", *first, *first);
    for (Thread& thread : threads_) {
      if (thread.state == State::kAtBarrier) thread.state = State::kReady;
    }
    ready_ = live_;
  }

  /// Completes the collective that `index` waits in if all live lanes of its mask have arrived.
  void finish_collective(unsigned index) {
    const Thread& caller = threads_[index];
    const unsigned first = first_lane(index);
    const unsigned lanes = end_lane(index) - first;
    unsigned arrived = 0;
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < lanes; ++lane) {
      const Thread& thread = threads_[first + lane];
      if ((caller.mask >> lane & 1u) == 0 || thread.state == State::kExited) continue;
      if (thread.state != State::kAtCollective || thread.collective != caller.collective ||
          thread.mask != caller.mask) {
        return;
      }
      arrived |= 1u << lane;
      if (thread.value != 0) ballot |= 1u << lane;
    }
    for (unsigned lane = 0; lane < lanes; ++lane) {
      if ((arrived >> lane & 1u) == 0) continue;
      Thread& thread = threads_[first + lane];
      thread.result = ballot;
      if (thread.collective == Collective::kShuffle) {
        // CUDA leaves what an absent lane gives undefined: all ones are a NaN in every format.
        const bool present = arrived >> thread.source & 1u;
        thread.result = present ? threads_[first + thread.source].value : ~0ull;
      }
      thread.state = State::kReady;
      ++ready_;
    }
  }

  void report_stuck(const char* what, const Thread& a, const Thread& b) {
    char text[2][160];
    const Thread* stuck[2] = {&a, &b};
    for (int i = 0; i < 2; ++i) {
      const Thread& thread = *stuck[i];
      const unsigned index = static_cast<unsigned>(&thread - threads_.data());
      const char* file = base_name(thread.site.file);
      if (thread.state == State::kAtBarrier) {
        snprintf(text[i], sizeof text[i], "thread %u waits in __syncthreads at %s:%d", index, file,
                 thread.site.line);
      } else {
        snprintf(text[i], sizeof text[i],
                 "thread %u waits in a warp collective of lanes 0x%08x at %s:%d", index,
                 thread.mask, file, thread.site.line);
      }
    }
    error_->set("%s in block %u: %s%s%s", what, blockIdx.x, text[0], &a == &b ? "" : ", ",
                &a == &b ? "" : text[1]);
  }

  static const char* base_name(const char* path) {
    const char* slash = std::strrchr(path, '/');
    return slash ? slash + 1 : path;
  }

  unsigned first_lane(unsigned index) const { return index / warpSize * warpSize; }
  unsigned end_lane(unsigned index) const {
    const unsigned end = first_lane(index) + warpSize;
    return end < threads_.size() ? end : static_cast<unsigned>(threads_.size());
  }

  void (*body_)();
  Schedule* schedule_;
  ErrorText* error_;
  std::vector<Thread> threads_;
  std::vector<unsigned> turns_;
  FiberPool fibers_;
  unsigned running_ = 0;
  unsigned live_ = 0;   // not exited
  unsigned ready_ = 0;  // able to go on
  static inline ThreadBlock* current_block_ = nullptr;
};

}  // namespace host
