// The order in which blocks, and the threads of a block between two barriers, take their turns.
//
// CUDA promises none. A kernel whose result depends on it shows under another order.
#pragma once
#include <cstdint>

namespace host {

enum class Order : int { kForward = 0, kReverse = 1, kShuffle = 2 };

class Schedule {
 public:
  Schedule(Order order, uint64_t seed) : order_(order), state_(seed) {}

  Order order() const { return order_; }

  /// Fills items with 0 ... count - 1 in this order; the next shuffle differs.
  void arrange(unsigned* items, unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      items[i] = order_ == Order::kReverse ? count - 1 - i : i;
    }
    if (order_ != Order::kShuffle) return;
    for (unsigned i = count; i > 1; --i) {
      const unsigned other = next() % i;
      const unsigned item = items[i - 1];
      items[i - 1] = items[other];
      items[other] = item;
    }
  }

 private:
  /// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  Order order_;
  uint64_t state_;
};

}  // namespace host
