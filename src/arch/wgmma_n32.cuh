// wgmma 64 x 32 (+)= 64 x 16 by 16 x 32, both operands in shared memory, as wgmma_any.cuh has the
// wider ones.
#pragma once

#include "arch/wgmma_any.cuh"

namespace hyla::arch {

template <class Element>
struct Wgmma<Element, 32> {
  static __device__ __forceinline__ void ss(float (&d)[16], std::uint64_t a, std::uint64_t b,
                                            bool accumulate) {
    if constexpr (std::is_same_v<Element, __half>) {
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
          "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16"
          " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15},"
          " %16, %17, p, 1, 1, 0, 0;\n}"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
            "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
            "+f"(d[14]), "+f"(d[15])
          : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
    } else {
      static_assert(std::is_same_v<Element, __nv_bfloat16>);
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
          "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16"
          " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15},"
          " %16, %17, p, 1, 1, 0, 0;\n}"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
            "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
            "+f"(d[14]), "+f"(d[15])
          : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
    }
  }
};

}  // namespace hyla::arch
