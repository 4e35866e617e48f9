// What the lanes of a warp do together on matrices: the products and transposed loads of ptx.cuh.
#pragma once
#include <cmath>

#include "thread_block.h"
#include "vector_types.h"

namespace host {

/// What each lane of a warp shows to the others.
inline const void* shown_by_lane[32][32];

/// Lets every lane of the warp read the objects of the others, between two barriers.
template <class T>
class WarpView {
 public:
  explicit WarpView(const T* own) : lanes_(shown_by_lane[threadIdx.x / 32]) {
    lanes_[threadIdx.x % 32] = own;
    meet();
  }
  ~WarpView() { meet(); }
  WarpView(const WarpView&) = delete;
  WarpView& operator=(const WarpView&) = delete;

  const T& operator[](int lane) const { return *static_cast<const T*>(lanes_[lane]); }

 private:
  static void meet() {
    ThreadBlock::current().wait_at_collective(Collective::kSync, 0xffffffffu, 0, 0,
                                              {__FILE__, __LINE__});
  }

  const void** lanes_;
};

/// Truncates the sum of an instruction to float, as tensor cores do.
inline float truncate_to_float(double sum) {
  float rounded = static_cast<float>(sum);
  if (std::isfinite(sum) && std::fabs(static_cast<double>(rounded)) > std::fabs(sum)) {
    rounded = std::nextafter(rounded, 0.0f);
  }
  return rounded;
}

struct Fragments {
  unsigned a[4];
  unsigned b[2];
};

/// 16 x 8 x kK: kPerRegister elements in each register, which `element` converts to double. The sum
/// of one instruction and its accumulator is taken in double, in the order of k.
template <int kK, int kPerRegister, class Convert>
inline void mma(float (&sum)[4], uint4 a, const unsigned (&b)[2], Convert element) {
  const Fragments own{{a.x, a.y, a.z, a.w}, {b[0], b[1]}};
  const WarpView<Fragments> warp(&own);
  const int g = threadIdx.x % 32 / 4;
  const int t = threadIdx.x % 4;
  for (int i = 0; i < 4; ++i) {
    const int row_half = i / 2;
    const int column = 2 * t + i % 2;
    double total = sum[i];
    for (int k = 0; k < kK; ++k) {
      const int half = k / (kK / 2);
      const int lane = k % (kK / 2) / kPerRegister;
      const int place = k % kPerRegister;
      total += element(warp[4 * g + lane].a[row_half + 2 * half], place) *
               element(warp[4 * column + lane].b[half], place);
    }
    sum[i] = truncate_to_float(total);
  }
}

}  // namespace host
